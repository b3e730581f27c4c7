"""What the hooks of the engine's loop are given: requests that wait or run, and one batch.

Views, made only where somebody implements the hook; changing the engine goes through what a hook
returns. Per-request hooks are ``request_types``'s.
"""

from __future__ import annotations

import msgspec


class QueuedRequest(msgspec.Struct, frozen=True):
    """A sequence in the engine that waits or runs.

    Args:
        request_id: the engine's.
        principal: name of who sent it; ``None`` if nobody is authenticated.
        priority: a lower number comes first.
        arrival_time: wall clock, seconds since the epoch.
        num_prompt_tokens: of the prompt.
        num_output_tokens: sampled so far.
        num_computed_tokens: of prompt and output, in the KV cache.
        num_preemptions: how often it lost its blocks.
        cache_salt: as the request gave it.
    """

    request_id: str
    principal: str | None
    priority: int
    arrival_time: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    cache_salt: str | None


class StepBatch(msgspec.Struct, frozen=True):
    """One step of a worker.

    Args:
        step: its number, from 1.
        num_scheduled_tokens: by request id, in batch order.
        num_new_requests: how many are here for the first time.
    """

    step: int
    num_scheduled_tokens: dict[str, int]
    num_new_requests: int
