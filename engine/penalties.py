"""``Penalties``: what a request's earlier tokens take from its logits.

Kept up token by token and ready to be applied, so that a step takes the same time however long
the sequence is. Order among the other changes to the logits is ``logit_edits``'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .sampling_params import SamplingParams

Row = np.ndarray[Any, np.dtype[np.float32]]


class Penalties:
    """Of one request, from its first token to its last.

    - Repetition penalty p (Keskar et al. 2019, in the form that everybody uses): the logits of all
      tokens of prompt and output are divided by p where they are positive, else multiplied.
    - Frequency and presence penalty (OpenAI): the logit of a token that the output has c times is
      lowered by ``c * frequency + (c > 0) * presence``.
    """

    __slots__ = (
        "_counts",
        "_divisors",
        "_frequency",
        "_presence",
        "_repetition",
        "_scratch",
        "_subtracted",
    )

    def __init__(
        self, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        with np.errstate(over="ignore"):  # what becomes infinite fails the request when sampled
            self._repetition = np.float32(params.repetition_penalty)
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._divisors: Row | None = None
        """[vocab]: 1 for tokens that have not been seen."""
        if self._repetition != 1.0:
            self._scratch = np.empty(vocab_size, dtype=np.float32)
            self._divisors = np.ones(vocab_size, dtype=np.float32)
            self._divisors[np.asarray(prompt_token_ids, dtype=np.int64)] = self._repetition
        self._subtracted: Row | None = None
        """[vocab]."""
        self._counts: dict[int, int] = {}
        if self._frequency or self._presence:
            self._subtracted = np.zeros(vocab_size, dtype=np.float32)

    @classmethod
    def from_params(
        cls, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> Penalties | None:
        """``None`` where the request has no penalty."""
        if (
            params.repetition_penalty == 1.0
            and not params.frequency_penalty
            and not params.presence_penalty
        ):
            return None
        return cls(params, prompt_token_ids, vocab_size)

    def append(self, token_id: int) -> None:
        """Count a token of the output."""
        if self._divisors is not None:
            self._divisors[token_id] = self._repetition
        if self._subtracted is not None:
            count = self._counts[token_id] = self._counts.get(token_id, 0) + 1
            self._subtracted[token_id] = count * self._frequency + self._presence

    def apply(self, logits: Row) -> None:
        """
        Args:
            logits: [at most vocab], changed in place; -inf stays -inf.
        """
        if self._divisors is not None:
            divisors = self._divisors[: len(logits)]
            positive = self._scratch[: len(logits)]
            np.maximum(logits, 0.0, out=positive)
            np.divide(positive, divisors, out=positive)
            np.minimum(logits, 0.0, out=logits)
            np.multiply(logits, divisors, out=logits)
            logits += positive
        if self._subtracted is not None:
            logits -= self._subtracted[: len(logits)]
