"""How many ranks can share a model, and which executor runs them. Pure arithmetic over what was
asked and what the checkpoint says; refusing it in words is ``engine_args``'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class HeadCounts(NamedTuple):
    heads: int
    key_heads: int

    @classmethod
    def of(cls, text_config: Mapping[str, Any]) -> HeadCounts:
        """From a checkpoint's ``config.json``; a model that states no heads has one."""
        heads = int(text_config.get("num_attention_heads") or 1)
        return cls(heads, int(text_config.get("num_key_value_heads") or heads))

    def rank_counts(self) -> list[int]:
        """The numbers of ranks of which each has as many heads as any other. Key heads that are
        fewer than the ranks are held by several of them."""
        return [
            n
            for n in range(1, self.heads + 1)
            if self.heads % n == 0 and (self.key_heads % n == 0 or n % self.key_heads == 0)
        ]


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
