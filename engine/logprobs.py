"""Log-probabilities of the model's own logits, for sampled tokens and for those of a prompt.

They are taken before anything that a request's parameters change. Which tokens are sampled is the
sampler's; running the model is the model runner's.
"""

from __future__ import annotations

import torch

from .messages import TokenLogprobs

MAX_ROWS = 64
"""Rows of the whole vocabulary that exist at once while a prompt is looked at."""


def compute_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: int
) -> list[TokenLogprobs]:
    """The log-softmax at one token of each row, and at the row's best tokens.

    Args:
        logits: [rows, vocab] of any floating type, on any device; computed in float32.
        token_ids: [rows] int64, on the same device.
        num_logprobs: how many best ones; -1 is all.
    """
    values = logits.float()
    vocab_size = values.shape[1]
    count = vocab_size if num_logprobs < 0 else min(num_logprobs, vocab_size)
    places = token_ids[:, None]
    # Among logits: rounding may make two log-probabilities equal that are not.
    ranks = (values >= values.gather(1, places)).sum(dim=1)
    if count:
        places = torch.cat([places, values.topk(count, dim=1).indices], dim=1)
    logprobs = values.log_softmax(dim=1).gather(1, places)
    rows = zip(places.tolist(), logprobs.tolist(), ranks.tolist(), strict=True)
    return [TokenLogprobs(*row) for row in rows]


class PromptLogprobs:
    """What is known of one prompt so far. Chunks come in order; after a preemption they come again
    from the start, and what is known stays."""

    __slots__ = ("entries", "num_logprobs", "num_prompt_tokens")

    def __init__(self, num_logprobs: int, num_prompt_tokens: int) -> None:
        self.num_logprobs = num_logprobs
        self.num_prompt_tokens = num_prompt_tokens
        # Nothing comes before the first token, so nothing says how likely it is.
        self.entries: list[TokenLogprobs | None] = [None]

    @property
    def is_complete(self) -> bool:
        return len(self.entries) == self.num_prompt_tokens

    def next_positions(self, start: int, end: int) -> range:
        """The positions from ``start`` to before ``end``, all computed in this step, whose logits
        tell of prompt tokens that are not known yet."""
        first = len(self.entries) - 1
        assert start <= first, (start, first)
        return range(first, min(end, self.num_prompt_tokens - 1))
