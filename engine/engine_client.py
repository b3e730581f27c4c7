"""``EngineClient``: a front's only way to the engine process. Requests go out, outputs come back.

It holds the requests in flight, hands each output to its sink, and knows when the last step
finished. Starting the engine and noticing its death is ``supervisor``'s; text is ``generation``'s.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hookserve.hookspecs import EngineLoad
from hookserve.hookspecs.report import ProcessReport

from .channel import AsyncChannel, ChannelClosed, ChannelError
from .config import EngineConfig
from .errors import EngineDeadError, InvalidRequestError, QueueFullError, cut
from .messages import (
    Abort,
    AddRequest,
    CollectiveRpc,
    Describe,
    Described,
    EngineCoreOutput,
    Failed,
    Finish,
    Ready,
    ResetPrefixCache,
    RpcResult,
    SchedulerStats,
    Shutdown,
    StepOutputs,
    ToEngine,
)
from .output_sink import OutputSink
from .sampling_params import SamplingParams
from .stats import FrontStats, IterationStats, Siblings
from .vllm_config import ModelConfig, VllmConfig

logger = logging.getLogger("hookserve.engine.engine_client")

MAX_UNFINISHED_REQUESTS = 8192
MAX_UNSENT_MESSAGES = 8192
STALL_AFTER_S = 10.0
STALL_FACTOR = 5.0
"""A stall is work pending and no finished step for the larger of ``STALL_AFTER_S`` and this many
times what the engine expected its next step to take."""

OnStats = Callable[[SchedulerStats | None, IterationStats | None], None]


class InFlight(NamedTuple):
    """Where the outputs of one request go."""

    sink: OutputSink
    prompt_index: int


class EngineClient:
    """Lives on the event loop; every method but ``generate`` and the calls that wait is immediate.

    ``abort``, ``finish`` and ``submit`` only queue a message; one task writes them in order.
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        vllm_config: VllmConfig,
        on_stats: OnStats,
        *,
        stall_after_s: float = STALL_AFTER_S,
    ) -> None:
        self.engine_config = engine_config
        self.vllm_config = vllm_config
        self.ready: Ready | None = None
        self._on_stats = on_stats
        self._stats = FrontStats()
        self._stall_after_s = stall_after_s
        self._in_flight: dict[str, InFlight] = {}
        self._by_caller: dict[str, set[str]] = {}
        self._ids = itertools.count(1)
        self._call_ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._unsent: deque[ToEngine] = deque()
        self._unsent_event = asyncio.Event()
        self._dead_error: EngineDeadError | None = None
        self._progress_at = time.monotonic()
        self._step_estimate_s = 0.0
        self._last_report = SchedulerStats()

    # -- what a route or plugin may ask -----------------------------------------------------

    @property
    def model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    @property
    def is_running(self) -> bool:
        return self.ready is not None and self._dead_error is None

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    @property
    def errored(self) -> bool:
        return self._dead_error is not None

    @property
    def dead_error(self) -> BaseException:
        return self._dead_error or EngineDeadError("the engine is not running")

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._in_flight)

    @property
    def load(self) -> EngineLoad:
        """How busy the engine is: by its last report, and what it has not reported on yet waits."""
        num_unfinished = len(self._in_flight)
        num_running = min(self._last_report.num_running_reqs, num_unfinished)
        return EngineLoad(
            num_running=num_running,
            num_waiting=num_unfinished - num_running,
            num_unfinished=num_unfinished,
            kv_cache_usage=self._last_report.kv_cache_usage,
        )

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the whole KV cache holds; known once the engine is ready."""
        assert self.ready is not None, "the engine is not ready"
        return self.ready.num_gpu_blocks * self.ready.block_size

    async def check_health(self) -> None:
        """Raises ``EngineDeadError`` if the engine is dead, has stalled, or is not up yet."""
        if not self.is_running:
            raise self.dead_error
        stalled_s = self.stalled_s()
        if stalled_s is not None:
            raise EngineDeadError(f"the engine has finished no step for {stalled_s:.0f} s")

    def stalled_s(self) -> float | None:
        """Seconds since the last progress if the engine has stalled, else ``None``."""
        if not self._in_flight or not self.is_running:
            return None
        age = time.monotonic() - self._progress_at
        limit = max(self._stall_after_s, STALL_FACTOR * self._step_estimate_s)
        return age if age > limit else None

    async def generate(
        self, prompt_token_ids: list[int], params: SamplingParams, request_id: str
    ) -> AsyncIterator[EngineCoreOutput]:
        """Yield what each step did for the request until it is finished.

        ``request_id`` is the caller's name for it: it may be used by several requests at once,
        and ``abort`` takes it. Leaving the iteration early aborts the request.
        """
        sink = OutputSink()
        engine_id = self.submit(prompt_token_ids, params, sink)
        self._by_caller.setdefault(request_id, set()).add(engine_id)
        try:
            while True:
                _, output = await sink.get()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            engine_ids = self._by_caller.get(request_id, set())
            engine_ids.discard(engine_id)
            if not engine_ids:
                self._by_caller.pop(request_id, None)
            self.abort_now([engine_id])

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Abort what ``generate`` was called for under these ids; unknown ones do nothing."""
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        for name in names:
            for engine_id in list(self._by_caller.get(name, ())):
                live = self._in_flight.get(engine_id)
                self.abort_now([engine_id])
                if live is not None:
                    aborted = EngineCoreOutput(engine_id, finish_reason="abort")
                    live.sink.put(live.prompt_index, aborted)

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method on every worker; one result each.

        Raises:
            EngineDeadError: no engine to ask.
            RuntimeError: with the worker's own sentence.
            TimeoutError: no answer within ``timeout`` seconds.
            TypeError: a name that is no text, or seconds that are no number.
        """
        for name in (method, *(kwargs or {})):
            if not isinstance(name, str):
                raise TypeError(f"collective_rpc: expected a name, got {cut(name)}")
        if timeout is not None and type(timeout) not in (int, float):
            raise TypeError(f"collective_rpc: expected seconds, got {cut(timeout)}")
        call_id = next(self._call_ids)
        message = CollectiveRpc(call_id, method, list(args), dict(kwargs or {}), timeout)
        result: list[Any] = await self._call(call_id, message, timeout)
        return result

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; requests that run keep what they have. Whether it is done.

        Raises:
            EngineDeadError: no engine to ask.
        """
        call_id = next(self._call_ids)
        done: bool = await self._call(call_id, ResetPrefixCache(call_id), None)
        return done

    async def describe(self, timeout: float | None = 2.0) -> list[ProcessReport]:
        """The live plugin reports of the engine's process and its workers'.

        Raises:
            EngineDeadError: no engine to ask.
            TimeoutError: no answer within ``timeout`` seconds.
        """
        call_id = next(self._call_ids)
        reports: list[ProcessReport] = await self._call(call_id, Describe(call_id), timeout)
        return reports

    # -- what the generation code uses ------------------------------------------------------

    def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        sink: OutputSink,
        index: int = 0,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        principal: str | None = None,
        siblings: Siblings | None = None,
    ) -> str:
        """Queue a request and return the id that the engine knows it by; always a new one.

        Args:
            principal: name of who sent it.
            siblings: shared by the sequences of one caller's request, for the statistics.

        Raises:
            EngineDeadError: the engine is gone or not ready.
            QueueFullError: too much is queued.
            InvalidRequestError: the prompt has no tokens.
        """
        if not self.is_running:
            raise self.dead_error
        if not prompt_token_ids:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        self.check_room()
        if not self._in_flight:
            self._progress_at = time.monotonic()
        engine_id = f"req-{next(self._ids)}"
        self._in_flight[engine_id] = InFlight(sink, index)
        self._stats.add_request(
            engine_id,
            num_prompt_tokens=len(prompt_token_ids),
            max_tokens=params.max_tokens,
            siblings=siblings,
        )
        self._send(
            AddRequest(
                engine_id, prompt_token_ids, params, time.time(), cache_salt, priority, principal
            )
        )
        return engine_id

    def check_room(self, count: int = 1) -> None:
        """Raises ``QueueFullError`` where ``count`` more requests would be too many now."""
        if (
            len(self._in_flight) + count > MAX_UNFINISHED_REQUESTS
            or len(self._unsent) + count > MAX_UNSENT_MESSAGES
        ):
            raise QueueFullError(f"{len(self._in_flight)} requests are unfinished; come back later")

    def abort_now(self, engine_ids: Iterable[str]) -> list[str]:
        """Forget the requests and tell the engine to free them; finished ones are left out. Which
        of them it was."""
        gone = [engine_id for engine_id in engine_ids if self._in_flight.pop(engine_id, None)]
        if gone:
            self._send(Abort(gone))
            self._note_ended(gone, "abort")
        return gone

    def finish(self, engine_id: str, reason: str, num_tokens: int) -> None:
        """A stop was found in text after ``num_tokens`` tokens; what comes later is dropped.

        If the engine ended the request by itself in the meantime, there is nothing to do.
        """
        if self._in_flight.pop(engine_id, None) is not None:
            self._send(Finish(engine_id, reason))
            self._note_ended([engine_id], reason, num_tokens)

    def _note_ended(
        self, engine_ids: Iterable[str], reason: str, num_tokens: int | None = None
    ) -> None:
        """For the statistics of the engine's next report: it answers each end with one."""
        for engine_id in engine_ids:
            self._stats.finish(engine_id, reason, num_generation_tokens=num_tokens)

    def _report_ended(self, engine_ids: Iterable[str], reason: str) -> None:
        """At once: no report of the engine will follow."""
        self._note_ended(engine_ids, reason)
        ended = self._stats.add_finished(None)
        if ended is not None:
            self._on_stats(None, ended)

    # -- what the supervisor uses -----------------------------------------------------------

    async def run(self, channel: AsyncChannel, ready: Ready) -> Failed | None:
        """Serve until the channel closes; returns the engine's last words, if it left any."""
        self.ready = ready
        writer = asyncio.create_task(self._write(channel), name="engine-writer")
        try:
            while True:
                message = await channel.recv()
                if isinstance(message, Failed):
                    return message
                self._receive(message)
        except ChannelClosed:
            return None
        except ChannelError as error:
            logger.error("the engine broke the protocol: %s", error)
            return None
        finally:
            writer.cancel()

    def request_shutdown(self) -> None:
        """Ask the engine to stop after its current step."""
        self._send(Shutdown())

    def mark_dead(self, error: EngineDeadError) -> None:
        """From now on nothing can be submitted; every request and call ends with ``error``."""
        self._dead_error = error
        self.fail_all(error)
        self._fail_calls(error)

    def detach(self, error: EngineDeadError) -> None:
        """As ``mark_dead``, until another engine is there: nothing that this one was meant to get
        goes to the next."""
        self.ready = None
        self.fail_all(error)
        self._fail_calls(error)
        self._unsent.clear()
        self._last_report = SchedulerStats()

    def _fail_calls(self, error: EngineDeadError) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()

    def fail_all(self, error: BaseException) -> None:
        """End every request in flight with ``error``; an engine that runs is told to free them."""
        for live in self._in_flight.values():
            live.sink.fail(error)
        if self.is_running:
            self.abort_now(list(self._in_flight))
        elif self._in_flight:
            ended = list(self._in_flight)
            self._in_flight.clear()
            self._report_ended(ended, "error")

    # -- inside -----------------------------------------------------------------------------

    async def _call(self, call_id: int, message: ToEngine, timeout: float | None) -> Any:
        if not self.is_running:
            raise self.dead_error
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self._send(message)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise TimeoutError(f"the engine has not answered within {timeout} s") from None
        finally:
            self._calls.pop(call_id, None)

    def _send(self, message: ToEngine) -> None:
        self._unsent.append(message)
        self._unsent_event.set()

    async def _write(self, channel: AsyncChannel) -> None:
        while True:
            await self._unsent_event.wait()
            self._unsent_event.clear()
            while self._unsent:
                message = self._unsent.popleft()
                try:
                    await channel.send(message)
                except ChannelClosed:
                    return
                except (ChannelError, TypeError, ValueError) as error:
                    self._refused(message, error)

    def _refused(self, message: ToEngine, error: Exception) -> None:
        """A message that cannot travel fails whoever sent it, and nobody else."""
        if isinstance(message, CollectiveRpc):
            future = self._calls.get(message.call_id)
            if future is not None and not future.done():
                future.set_exception(RuntimeError(f"{message.method}: {error}"))
        elif isinstance(message, AddRequest):
            live = self._in_flight.pop(message.request_id, None)
            if live is not None:
                message_error = f"the request cannot be sent to the engine: {error}"
                live.sink.fail(InvalidRequestError(message_error))
                self._report_ended([message.request_id], "error")
        else:
            logger.error("cannot send %s to the engine: %s", type(message).__name__, error)

    def _receive(self, message: object) -> None:
        if isinstance(message, StepOutputs):
            self._on_step(message)
        elif isinstance(message, RpcResult):
            future = self._calls.get(message.call_id)
            if future is None or future.done():
                return
            if message.error is None:
                future.set_result(message.result)
            else:
                future.set_exception(RuntimeError(message.error))
        elif isinstance(message, Described):
            future = self._calls.get(message.call_id)
            if future is not None and not future.done():
                future.set_result(message.processes)
        else:
            logger.error("the engine sent an unexpected %s", type(message).__name__)

    def _on_step(self, message: StepOutputs) -> None:
        now = time.monotonic()
        self._progress_at = now
        self._step_estimate_s = message.next_step_estimate_s
        self._last_report = message.scheduler_stats
        if message.outputs:
            iteration: IterationStats | None = self._stats.observe(message, now)
        else:
            iteration = self._stats.add_finished(None)
        in_flight = self._in_flight
        for output in message.outputs:
            live = in_flight.get(output.request_id)
            if live is None:
                continue
            if output.finish_reason is not None:
                del in_flight[output.request_id]
            live.sink.put(live.prompt_index, output)
        self._on_stats(message.scheduler_stats, iteration)
