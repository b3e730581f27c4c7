"""``Generation``: the prompts of one HTTP request while the engine works on them.

From the engine's tokens to deltas of text, the counts for ``usage``, the record for
``request_finished``, and the abort when the client goes away. How a reply is written is the
routes' business.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from types import TracebackType

from hookserve.engine.errors import EngineDeadError, RequestError
from hookserve.engine.output_sink import OutputSink
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.text.output import OutputProcessor, TextDelta
from hookserve.hookspecs import RequestRecord

from .errors import ApiError, cut, engine_failure
from .serving import Serving

_RANK = {None: 0, "stop": 1, "length": 2, "abort": 3, "error": 4}


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class Generation:
    """Entered with ``async with``: entering submits the prompts, leaving frees what still runs and
    reports the request, whether it ended, failed or was left by its client."""

    def __init__(
        self,
        serving: Serving,
        *,
        request_id: str,
        route: str,
        model: str,
        prompts: list[list[int]],
        params: list[SamplingParams],
    ) -> None:
        self.model = model
        self.prompts = prompts
        self.num_cached_tokens = 0
        self._serving = serving
        self._client = serving.client
        self._request_id = request_id
        self._route = route
        self._params = params
        self._sink = OutputSink()
        self._processors = [
            OutputProcessor(serving.tokenizer, prompt, each)
            for prompt, each in zip(prompts, params, strict=True)
        ]
        self._engine_ids: list[str] = []
        self._is_open = [True] * len(prompts)
        self._finish_reason: str | None = None
        self._arrival_time = time.time()
        self._started = time.monotonic()
        self._ttft_s: float | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_completion_tokens(self) -> int:
        return sum(processor.num_tokens for processor in self._processors)

    async def __aenter__(self) -> Generation:
        try:
            for index, (prompt, params) in enumerate(zip(self.prompts, self._params, strict=True)):
                engine_id = self._client.submit(prompt, params, self._sink, index)
                self._engine_ids.append(engine_id)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            if isinstance(error, EngineDeadError | RequestError):
                raise engine_failure(error) from None
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.abort_now(self._engine_ids)
        if self._engine_ids:
            self._serving.report(self._record(error))

    def cancel(self) -> None:
        """The client is gone: the engine is told at once, and ``deltas`` ends."""
        self._client.abort_now(self._engine_ids)
        self._sink.fail(ClientGone())

    async def deltas(self) -> AsyncIterator[tuple[int, TextDelta]]:
        """What each step of the engine added, with the index of its prompt, until all have ended.

        Raises:
            ApiError: the engine could not go on with one of them.
            ClientGone: after ``cancel``.
        """
        num_open = len(self.prompts)
        while num_open:
            try:
                index, output = await self._sink.get()
            except (EngineDeadError, RequestError) as error:
                raise engine_failure(error) from None
            if not self._is_open[index]:
                continue
            if output.finish_reason in ("error", "abort"):
                self._note_end(output.finish_reason)
                raise _engine_refusal(output.error)
            if self._ttft_s is None and output.new_token_ids:
                self._ttft_s = time.monotonic() - self._started
            self.num_cached_tokens += output.num_cached_tokens
            processor = self._processors[index]
            delta = processor.push(output.new_token_ids, output.finish_reason, output.stop_reason)
            if delta.finish_reason is not None:
                num_open -= 1
                self._is_open[index] = False
                self._note_end(delta.finish_reason)
                if delta.stopped_by_text:
                    self._client.finish(
                        self._engine_ids[index], delta.finish_reason, processor.num_tokens
                    )
            yield index, delta

    def _note_end(self, reason: str) -> None:
        """Of several prompts the worst end counts for the record."""
        if _RANK.get(reason, 0) > _RANK[self._finish_reason]:
            self._finish_reason = reason

    def _record(self, error: BaseException | None) -> RequestRecord:
        reason, sentence = self._finish_reason, None
        if isinstance(error, ApiError):
            reason, sentence = "error", error.message
        elif isinstance(error, Exception) and not isinstance(error, ClientGone):
            reason, sentence = "error", type(error).__name__
        elif error is not None or any(self._is_open):
            reason = "abort"
        return RequestRecord(
            request_id=self._request_id,
            route=self._route,
            model=self.model,
            num_prompt_tokens=self.num_prompt_tokens,
            num_completion_tokens=self.num_completion_tokens,
            finish_reason=reason,
            error=sentence,
            arrival_time=self._arrival_time,
            ttft_s=self._ttft_s,
            latency_s=time.monotonic() - self._started,
        )


def _engine_refusal(sentence: str | None) -> ApiError:
    return ApiError(500, cut(sentence or "the engine ended the request"), code="engine_error")
