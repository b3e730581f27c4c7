"""``n`` and ``best_of``: one prompt's parameters divided into requests of one sequence each.

The engine knows sequences only. Whoever takes requests from people divides them here, and puts the
answers together again by their index.
"""

from __future__ import annotations

import msgspec

from .sampling_params import SamplingParams


def fan_out(params: SamplingParams) -> list[SamplingParams]:
    """The parameters of each sequence to generate: ``best_of`` of them, or else ``n``.

    A seed is counted up from one to the next, so that the first sequence is what the seed gives
    alone. The prompt is the same for all, so the first one alone is asked about it. Where more are
    generated than returned, each has the log-probabilities by which ``choose_best`` tells them
    apart.
    """
    count = params.n if params.best_of is None else params.best_of
    if count == 1:
        return [params if params.best_of is None else msgspec.structs.replace(params, best_of=None)]
    logprobs = params.logprobs
    if count > params.n and logprobs is None:
        logprobs = 0
    return [
        msgspec.structs.replace(
            params,
            n=1,
            best_of=None,
            seed=_nth_seed(params.seed, index),
            logprobs=logprobs,
            prompt_logprobs=None if index else params.prompt_logprobs,
        )
        for index in range(count)
    ]


def _nth_seed(seed: int | None, index: int) -> int | None:
    """Behind the greatest signed 64-bit number comes the least."""
    return None if seed is None else (seed + index + 2**63) % 2**64 - 2**63


def choose_best(cumulative_logprobs: list[float], n: int) -> list[int]:
    """Indices of the ``n`` likeliest sequences, the likeliest first; of equals, the first ones.

    Args:
        cumulative_logprobs: of each sequence, the sum over its tokens.
    """
    indices = range(len(cumulative_logprobs))
    return sorted(indices, key=lambda index: -cumulative_logprobs[index])[:n]
