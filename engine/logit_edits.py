"""``LogitEdits``: what a request's parameters change about its logits before temperature.

One object for each request that changes anything, from its first step to its end, preemptions
included: it follows the output token by token. Choosing a token from the result is the sampler's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .penalties import Penalties, Row
from .sampling_params import SamplingParams

Ids = np.ndarray[Any, np.dtype[np.int64]]


class LogitEdits:
    """In the ecosystem's order: allowed tokens, bad words, end tokens before ``min_tokens``, bias,
    penalties."""

    __slots__ = (
        "_allowed",
        "_bad_words",
        "_bias",
        "_bias_ids",
        "_end_ids",
        "_min_tokens",
        "_num_output_tokens",
        "_penalties",
    )

    def __init__(
        self, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        """
        Args:
            prompt_token_ids: below ``vocab_size``, as every id in ``params``.
            vocab_size: the model's; its logits may have fewer columns.
        """
        allowed = params.allowed_token_ids
        self._allowed = None if allowed is None else _sorted_ids(allowed)
        words = params.bad_words_token_ids
        self._bad_words = BadWords(words) if words else None
        self._min_tokens = params.min_tokens if params.all_stop_token_ids else 0
        self._end_ids = _sorted_ids(params.all_stop_token_ids)
        bias = params.logit_bias or {}
        self._bias_ids = _sorted_ids(bias)
        self._bias = np.array([bias[i] for i in self._bias_ids.tolist()], dtype=np.float32)
        self._penalties = Penalties.from_params(params, prompt_token_ids, vocab_size)
        self._num_output_tokens = 0

    @classmethod
    def from_params(
        cls, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> LogitEdits | None:
        """``None`` where the request changes no logits."""
        edits = cls(params, prompt_token_ids, vocab_size)
        return edits if edits.acts else None

    @property
    def acts(self) -> bool:
        """Whether ``apply`` would change anything for the next token."""
        return (
            self._num_output_tokens < self._min_tokens
            or self._allowed is not None
            or self._bad_words is not None
            or self._penalties is not None
            or len(self._bias) > 0
        )

    def append(self, token_id: int) -> None:
        """Follow the output by one token."""
        self._num_output_tokens += 1
        if self._bad_words is not None:
            self._bad_words.append(token_id)
        if self._penalties is not None:
            self._penalties.append(token_id)

    def apply(self, logits: Row) -> None:
        """
        Args:
            logits: [at most vocab], changed in place; -inf where a token is impossible.
        """
        self.restrict(logits)
        self.penalize(logits)

    def restrict(self, logits: Row) -> None:
        """The first half of ``apply``: all but the penalties."""
        if self._allowed is not None:
            allowed = _below(self._allowed, len(logits))
            kept = logits[allowed]
            logits.fill(-np.inf)
            logits[allowed] = kept
        if self._bad_words is not None:
            logits[_below(self._bad_words.banned(), len(logits))] = -np.inf
        if self._num_output_tokens < self._min_tokens:
            logits[_below(self._end_ids, len(logits))] = -np.inf
        if len(self._bias):
            biased = _below(self._bias_ids, len(logits))
            logits[biased] += self._bias[: len(biased)]

    def penalize(self, logits: Row) -> None:
        """The second half of ``apply``."""
        if self._penalties is not None:
            # A repetition penalty may be too great or too small for float32; the sampler then fails
            # the request alone.
            with np.errstate(all="ignore"):
                self._penalties.apply(logits)


class BadWords:
    """Sequences of tokens that the output must not contain: the last token of each is banned
    wherever the ones before it have just been generated."""

    __slots__ = ("_always", "_by_last", "_recent")

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self._always = _sorted_ids(word[0] for word in words if len(word) == 1)
        self._by_last: dict[int, list[tuple[int, ...]]] = {}
        """Words of several tokens, by their last but one."""
        longest = 1
        for word in words:
            if len(word) > 1:
                self._by_last.setdefault(word[-2], []).append(word)
                longest = max(longest, len(word) - 1)
        self._recent: deque[int] = deque(maxlen=longest)

    def append(self, token_id: int) -> None:
        self._recent.append(token_id)

    def banned(self) -> Ids:
        """Sorted ids of the tokens that may not come next."""
        begun = self._by_last.get(self._recent[-1], []) if self._recent else []
        recent = tuple(self._recent) if begun else ()
        ends = _sorted_ids(w[-1] for w in begun if recent[1 - len(w) :] == w[:-1])
        return np.union1d(self._always, ends) if len(ends) else self._always


def _sorted_ids(token_ids: Iterable[int]) -> Ids:
    return np.array(sorted(set(token_ids)), dtype=np.int64)


def _below(token_ids: Ids, limit: int) -> Ids:
    """Those of the sorted ids that are below the limit."""
    return token_ids[: int(token_ids.searchsorted(limit))]
