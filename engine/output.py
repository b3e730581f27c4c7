"""Which token ends a request: the stops that need no text.

Stops found in text are the output processor's in front; it tells the engine with ``Finish``.
"""

from __future__ import annotations

from typing import NamedTuple

from .request import Request


class Stop(NamedTuple):
    finish_reason: str
    """``"stop"`` or ``"length"``."""
    stop_reason: int | None
    """The token id out of ``stop_token_ids``; ``None`` for the model's own end and for length."""


def find_stop(request: Request, max_num_tokens: int) -> Stop | None:
    """Whether the request's newest token is its last.

    Args:
        request: has at least one output token.
        max_num_tokens: prompt and output together may not be longer.
    """
    token_id = request.token_ids[-1]
    if token_id in request.eos_ids:
        return Stop("stop", None)
    if token_id in request.stop_ids:
        return Stop("stop", token_id)
    max_tokens = request.params.max_tokens
    if max_tokens is not None and request.num_output_tokens >= max_tokens:
        return Stop("length", None)
    if request.num_tokens >= max_num_tokens:
        return Stop("length", None)
    return None
