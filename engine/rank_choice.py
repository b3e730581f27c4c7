"""How many ranks can share a model, and which executor runs them. Pure arithmetic over what was
asked and what the checkpoint says; refusing it in words is ``engine_limits``'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class SharedSizes(NamedTuple):
    """What of a model is shared out among ranks."""

    heads: int
    key_heads: int
    inner_width: int
    """Of the feed-forward layers; 0 where the checkpoint states none."""

    @classmethod
    def of(cls, text_config: Mapping[str, Any]) -> SharedSizes:
        """From a checkpoint's ``config.json``; a model that states no heads has one."""
        heads = int(text_config.get("num_attention_heads") or 1)
        key_heads = int(text_config.get("num_key_value_heads") or heads)
        inner = text_config.get("intermediate_size") or text_config.get("ffn_dim")
        return cls(heads, key_heads, inner if isinstance(inner, int) else 0)

    def rank_counts(self) -> list[int]:
        """The numbers of ranks of which each has as much as any other. Key heads that are fewer
        than the ranks are held by several of them."""
        return [
            n
            for n in range(1, self.heads + 1)
            if self.heads % n == 0
            and (self.key_heads % n == 0 or n % self.key_heads == 0)
            and self.inner_width % n == 0
        ]

    def __str__(self) -> str:
        said = f"{self.heads} attention heads and {self.key_heads} key heads"
        return said + (f" and inner width {self.inner_width}" if self.inner_width else "")


def choose_executor(asked: str, num_ranks: int) -> tuple[str, str]:
    """The executor's name, and why.

    Args:
        asked: a name, or ``"auto"``.
    """
    if asked != "auto":
        return asked, "asked for"
    if num_ranks == 1:
        return "uni", "one rank needs no process of its own"
    return "mp", f"{num_ranks} ranks, each a process of its own"
