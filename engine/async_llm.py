"""``AsyncLLM``: an engine in a process of its own, for programs with an event loop.

The process is ``supervisor``'s, what travels is ``engine_client``'s; this file turns prompts and
tokens into each other. The engine in the caller's own process is ``llm``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookserve.hookspecs import Host, PluginSettings

from .config import EngineConfig
from .engine_args import EngineArgs
from .engine_child import ENGINE_COMMAND
from .engine_client import EngineClient
from .errors import EngineDeadError
from .grammar_checks import GrammarChecks
from .home_process import HomeProcess
from .input_processor import InputProcessor, ReadyRequest
from .messages import EngineCoreOutput
from .offline_host import open_host
from .output_assembler import OutputAssembler
from .output_sink import OutputSink
from .outputs import RequestOutput
from .plugin_reports import EngineReports
from .processor_checks import ProcessorChecks
from .prompts import PromptInput, read_prompt
from .sampling_params import SamplingParams
from .stat_loggers import LOG_INTERVAL_S, StatLoggers
from .supervisor import STOP_TIMEOUT_S, EngineSupervisor
from .text.tokenizer import Tokenizer, load_tokenizer
from .vllm_config import ModelConfig, VllmConfig


@dataclass
class AsyncEngineArgs(EngineArgs):
    """The arguments of an ``AsyncLLM``; the same ones, under the ecosystem's name."""


class _Live:
    """A call of ``generate`` that has not ended."""

    def __init__(self) -> None:
        self.sink = OutputSink()
        self.engine_ids: list[str] = []
        self.is_aborted = False
        """Also where nothing was submitted yet."""

    def abort(self, client: EngineClient) -> None:
        self.is_aborted = True
        client.abort_now(self.engine_ids)
        for index, engine_id in enumerate(self.engine_ids):
            self.sink.put(index, EngineCoreOutput(engine_id, finish_reason="abort"))


class AsyncLLM:
    """Made anywhere; the engine process starts with the first call that needs it, or with
    ``start``, and belongs to the event loop that runs then. It ends with ``shutdown``, with the
    last reference, or with this process.

    Args:
        engine_config: as ``EngineArgs.to_engine_config`` makes it.
        host: with the role front, held for this engine, which releases it.
        is_first: the host has no other user yet.
        log_stats_interval: seconds between two lines of statistics.
        command: what the engine's process runs.

    Attributes:
        plugins: the plugin manager of this process; ``describe(all_processes=True)`` asks the
            engine too, from any thread but the event loop's.
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        host: Host,
        *,
        is_first: bool = True,
        log_stats_interval: float = LOG_INTERVAL_S,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self.engine_config = engine_config
        self.vllm_config = VllmConfig.from_engine_config(engine_config)
        self.tokenizer: Tokenizer = load_tokenizer(engine_config.model.tokenizer)
        if is_first:
            host.calls.process_started(host.roles, self.vllm_config)
        self._loggers = StatLoggers.build(host, self.vllm_config)
        self._checks = ProcessorChecks.build(host, engine_config)
        self._grammars = GrammarChecks(host, engine_config)
        self._log_interval_s = log_stats_interval
        self.plugins = host.pm
        self._client = EngineClient(engine_config, self.vllm_config, self._loggers.record)
        self._supervisor = EngineSupervisor(host, engine_config, self._client, command=command)
        self._live: dict[str, list[_Live]] = {}
        self._starting: asyncio.Task[InputProcessor] | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._home = HomeProcess()
        self._on_end = contextlib.ExitStack()
        self._finalizer = weakref.finalize(
            self, _end, self._home, self._supervisor, self._loggers, host, self._on_end
        )

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        *,
        plugins: Sequence[Any] = (),
        plugin_settings: PluginSettings | None = None,
        log_stats_interval: float = LOG_INTERVAL_S,
    ) -> AsyncLLM:
        """
        Args:
            plugins: names of modules and paths of ``.py`` files, loaded in every process.
            plugin_settings: what else is wanted of plugins; nothing by default.

        Raises:
            HookserveError: a setting, a model file or an architecture that cannot work.
            hookserve.hookspecs.HostError: plugins; or another engine of this process was made with
                other plugin settings, and lives.
        """
        host, is_first = open_host(
            ("front",),
            plugins,
            plugin_settings,
            objects_stay="the engine's process cannot be handed one",
        )
        try:
            config = engine_args.to_engine_config(host)
            return cls(config, host, is_first=is_first, log_stats_interval=log_stats_interval)
        except BaseException:
            host.release()
            raise

    # -- the engine's life ----------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the engine up, if nobody has; returns when it is ready.

        Raises:
            EngineStartError: it did not come up, with its own sentence where it left one.
            EngineDeadError: after ``shutdown``.
        """
        await self._ready()

    async def _ready(self) -> InputProcessor:
        self._home.check()
        if not self._finalizer.alive:
            raise self._client.dead_error
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        elif self._starting.get_loop() is not asyncio.get_running_loop():
            raise RuntimeError(
                "this AsyncLLM belongs to another event loop; make one for each loop"
            )
        return await asyncio.shield(self._starting)

    async def _start(self) -> InputProcessor:
        try:
            ready = await self._supervisor.start()
        except Exception as error:
            self._client.mark_dead(EngineDeadError(f"the engine did not start: {error}"))
            raise
        self.vllm_config.cache_config.num_gpu_blocks = ready.num_gpu_blocks
        self._on_end.enter_context(EngineReports(self._client).told_by(self.plugins))
        self._loggers.drop_inactive()
        self._loggers.log_engine_initialized()
        if self.engine_config.log_stats:
            self._log_task = asyncio.create_task(self._loggers.log_forever(self._log_interval_s))
        capacity = self._client.kv_capacity_tokens
        return InputProcessor(
            self.engine_config, self.tokenizer, capacity, self._checks, self._grammars
        )

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine; requests that run end with ``EngineDeadError``. To be called where the
        event loop runs, or after its end; waits for the process. Nothing in one that was forked.

        Args:
            timeout: seconds that it has before it is ended by force.
        """
        if not self._home.is_here:
            return
        if self._log_task is not None and not self._log_task.get_loop().is_closed():
            self._log_task.cancel()
        if self._finalizer.alive:
            self._supervisor.stop_now(STOP_TIMEOUT_S if timeout is None else timeout)
            self._finalizer()

    @property
    def is_running(self) -> bool:
        return self._client.is_running

    @property
    def is_stopped(self) -> bool:
        return self._client.is_stopped

    @property
    def errored(self) -> bool:
        return self._client.errored

    @property
    def dead_error(self) -> BaseException:
        return self._client.dead_error

    async def check_health(self) -> None:
        """Raises ``EngineDeadError`` if the engine is dead or has stalled."""
        await self._ready()
        await self._client.check_health()

    # -- requests -------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs as ``sampling_params.output_kind`` says; the last one is ``finished``.

        With ``n`` above 1 an output holds the sequence that went on; where the best of more are
        chosen, there is one output at the end. Leaving the iteration early aborts the request.

        Args:
            prompt: a text, token ids, or a dict (``prompts.PromptInput``).
            sampling_params: ``None``: what the model's generation config says.
            request_id: the caller's name for it, for ``abort``.
            priority: lower is sooner, with ``scheduling_policy="priority"``.

        Raises:
            InvalidRequestError, SamplingParamsError: it cannot run.
            QueueFullError: too many requests are unfinished.
            EngineDeadError: the engine is gone.
        """
        live = _Live()
        named = self._live.setdefault(request_id, [])
        named.append(live)
        try:
            processor = await self._ready()
            params = sampling_params if sampling_params is not None else processor.default_params()
            # A long prompt must not hold up the other requests.
            request = await asyncio.to_thread(
                processor.prepare, read_prompt(prompt), params, priority=priority
            )
            assembler = OutputAssembler(
                request_id, request.prompt, request.prompt_token_ids, request.params, self.tokenizer
            )
            self._submit(live, assembler, request)
            while not assembler.is_finished:
                index, output = await live.sink.get()
                delta = assembler.take(index, output)
                if delta.stopped_by_text and delta.finish_reason is not None:
                    engine_id = live.engine_ids[index]
                    self._client.finish(engine_id, delta.finish_reason, assembler.num_tokens(index))
                shown = assembler.output(index)
                if shown is not None:
                    yield shown
        finally:
            self._client.abort_now(live.engine_ids)
            named.remove(live)
            if not named:
                self._live.pop(request_id, None)

    def _submit(self, live: _Live, assembler: OutputAssembler, request: ReadyRequest) -> None:
        siblings = assembler.siblings()
        for index, child in enumerate(assembler.children):
            engine_id = self._client.submit(
                request.prompt_token_ids,
                child,
                live.sink,
                index,
                priority=request.priority,
                cache_salt=request.cache_salt,
                siblings=siblings,
            )
            live.engine_ids.append(engine_id)
        if live.is_aborted:
            live.abort(self._client)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End what ``generate`` was called for under these ids; unknown ones do nothing."""
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        for name in names:
            for live in self._live.get(name, ()):
                live.abort(self._client)

    # -- the rest -------------------------------------------------------------------------------

    @property
    def model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def get_num_unfinished_requests(self) -> int:
        return self._client.num_unfinished_requests

    async def do_log_stats(self) -> None:
        """Have every stat logger write its line now."""
        self._loggers.log()

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a public method of every worker; one result each. Raises as ``EngineClient``'s."""
        await self._ready()
        return await self._client.collective_rpc(method, timeout, args, kwargs)


def _end(
    home: HomeProcess,
    supervisor: EngineSupervisor,
    loggers: StatLoggers,
    host: Host,
    on_end: contextlib.ExitStack,
) -> None:
    """Without the object, which may be gone: at the end of this process, or of its last
    reference."""
    if not home.is_here:
        return
    supervisor.abandon()
    on_end.close()
    loggers.shutdown()
    host.release()
