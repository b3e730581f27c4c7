"""Log-probabilities as replies show them: the objects of both routes, and those of a prompt.

A token is written as its own text. One that is only part of a character has none, and is written
as its bytes: ``bytes:\\xf0\\x9f``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookserve.engine.messages import TokenLogprobs
from hookserve.engine.text.tokenizer import Tokenizer

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class LogprobsWriter:
    """Writes for one reply.

    Args:
        num_top: how many of the likeliest tokens are shown at each position; ``None``: nothing is
            shown of generated tokens.
        num_prompt: the same for ``prompt_logprobs``.
        as_ids: write ``token_id:N`` in place of a token's text, but for ``prompt_logprobs``.

    Attributes:
        is_silent: nothing is shown of generated tokens.
        writes_many: there may be millions of entries in a reply, which take seconds.
    """

    def __init__(
        self, tokenizer: Tokenizer, num_top: int | None, num_prompt: int | None, *, as_ids: bool
    ) -> None:
        self._tokenizer = tokenizer
        self.is_silent = num_top is None
        self.writes_many = num_prompt is not None or num_top is not None
        self._num_top = num_top or 0
        self._num_prompt = num_prompt
        self._as_ids = as_ids

    def completion(
        self,
        entries: Sequence[TokenLogprobs] | None,
        text_offsets: Sequence[int] | None,
        num_before: int = 0,
    ) -> dict[str, Any] | None:
        """``logprobs`` of a choice of ``/v1/completions``.

        Args:
            num_before: characters of the choice's text in front of what was generated.
        """
        if self.is_silent or entries is None or text_offsets is None:
            return None
        return {
            "tokens": [self._name(entry.token_ids[0]) for entry in entries],
            "token_logprobs": [_finite(entry.logprobs[0]) for entry in entries],
            "top_logprobs": [self._by_name(entry) for entry in entries],
            "text_offset": [num_before + offset for offset in text_offsets],
        }

    def echo(
        self,
        token_ids: Sequence[int],
        entries: Sequence[TokenLogprobs | None],
        text_offsets: Sequence[int],
    ) -> dict[str, Any]:
        """The same of a prompt that stands in front of a choice's text; of its first token there is
        nothing to tell."""
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [
                None if entry is None else _finite(entry.logprobs[0]) for entry in entries
            ],
            "top_logprobs": [None if entry is None else self._by_name(entry) for entry in entries],
            "text_offset": list(text_offsets),
        }

    def chat(self, entries: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        """``logprobs`` of a choice of ``/v1/chat/completions``."""
        if self.is_silent or entries is None:
            return None
        return {"content": [self._chat_entry(entry) for entry in entries], "refusal": None}

    def prompt(
        self, entries: Sequence[TokenLogprobs | None] | None
    ) -> list[dict[str, Any] | None] | None:
        """``prompt_logprobs``: an object for each token of the prompt, ``null`` for the first. The
        token itself comes first, then the best ones."""
        if entries is None or self._num_prompt is None:
            return None
        return [None if entry is None else self._ranked(entry) for entry in entries]

    def _chat_entry(self, entry: TokenLogprobs) -> dict[str, Any]:
        best = self._best(entry)
        return {
            **self._chat_token(entry.token_ids[0], entry.logprobs[0]),
            "top_logprobs": [self._chat_token(token_id, value) for token_id, value in best],
        }

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._name(token_id),
            "logprob": _finite(logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }

    def _by_name(self, entry: TokenLogprobs) -> dict[str, float]:
        """The best ones, and the token itself if it is not among them."""
        shown: dict[str, float] = {}
        for token_id, logprob in [*self._best(entry), (entry.token_ids[0], entry.logprobs[0])]:
            shown.setdefault(self._name(token_id), _finite(logprob))
        return shown

    def _best(self, entry: TokenLogprobs) -> list[tuple[int, float]]:
        end = 1 + self._num_top
        return list(zip(entry.token_ids[1:end], entry.logprobs[1:end], strict=True))

    def _name(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        spelled = self._tokenizer.token_bytes(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def _ranked(self, entry: TokenLogprobs) -> dict[str, Any]:
        assert self._num_prompt is not None
        end = 1 + self._num_prompt
        token_ids, logprobs = entry.token_ids[:end], entry.logprobs[:end]
        ranks = (entry.rank, *range(1, len(token_ids)))
        shown: dict[str, Any] = {}
        for token_id, logprob, rank in zip(token_ids, logprobs, ranks, strict=True):
            if str(token_id) not in shown:
                text = self._tokenizer.token_bytes(token_id).decode(errors="replace")
                shown[str(token_id)] = {
                    "logprob": _finite(logprob),
                    "rank": rank,
                    "decoded_token": text,
                }
        return shown


def _finite(logprob: float) -> float:
    return max(FLOOR, logprob)
