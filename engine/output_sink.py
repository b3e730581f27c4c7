"""``OutputSink``: what the engine produced for one request of a caller and nobody has read yet.

One sink holds all prompts of a request, so that one coroutine serves them. The engine client
fills it, the request's coroutine empties it; both run on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .messages import EngineCoreOutput

MAX_PENDING_OUTPUTS = 1024
"""Outputs a prompt; a reader that is further behind gets later ones joined into the last."""


class OutputSink:
    """Nothing is lost and the memory is bounded: outputs are at most ``MAX_PENDING_OUTPUTS`` a
    prompt, and their tokens at most the model's context."""

    def __init__(self) -> None:
        self._ready: deque[int] = deque()
        self._outputs: dict[int, deque[EngineCoreOutput]] = {}
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, index: int, output: EngineCoreOutput) -> None:
        pending = self._outputs.get(index)
        if pending is None:
            pending = self._outputs[index] = deque()
        if len(pending) >= MAX_PENDING_OUTPUTS:
            pending[-1] = join(pending[-1], output)
        else:
            pending.append(output)
            self._ready.append(index)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """End the request with ``error``; what came before is read first. The first one counts."""
        if self._error is None:
            self._error = error
            self._wake()

    async def get(self) -> tuple[int, EngineCoreOutput]:
        """The next output and the index of its prompt.

        Raises:
            the error that ``fail`` was given, after the last output.
        """
        while not self._ready:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        index = self._ready.popleft()
        return index, self._outputs[index].popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def join(first: EngineCoreOutput, second: EngineCoreOutput) -> EngineCoreOutput:
    """Both outputs as one; the lists of ``first`` are extended in place."""
    first.new_token_ids.extend(second.new_token_ids)
    if first.logprobs is not None and second.logprobs is not None:
        first.logprobs.extend(second.logprobs)
    return EngineCoreOutput(
        request_id=first.request_id,
        new_token_ids=first.new_token_ids,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
        error=second.error,
        is_refusal=second.is_refusal,
        num_cached_tokens=max(first.num_cached_tokens, second.num_cached_tokens),
        queued_s=first.queued_s if first.queued_s is not None else second.queued_s,
        num_preemptions=max(first.num_preemptions, second.num_preemptions),
        logprobs=second.logprobs if first.logprobs is None else first.logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
    )
