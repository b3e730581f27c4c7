"""``AsyncLLM``: an engine in a process of its own, for programs with an event loop.

The process is ``supervisor``'s, what travels is ``engine_client``'s, and what it is asked
``prompt_client``'s. The engine in the caller's own process is ``llm``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from hookserve.hookspecs import Host, PluginSettings

from .config import EngineConfig
from .config_changes import fold_changes
from .engine_args import EngineArgs, name_engine
from .engine_child import ENGINE_COMMAND
from .engine_client import EngineClient
from .errors import ConfigError, EngineDeadError
from .grammar_checks import GrammarChecks
from .home_process import HomeProcess
from .input_processor import InputProcessor
from .model_inspection import check_model_class
from .offline_host import open_host
from .plugin_reports import EngineReports
from .processor_checks import ProcessorChecks
from .prompt_client import PromptClient
from .stat_loggers import LOG_INTERVAL_S, StatLoggers
from .supervisor import STOP_TIMEOUT_S, EngineSupervisor
from .text.tokenizer import load_tokenizer
from .vllm_config import VllmConfig


class AsyncLLM(PromptClient):
    """Made anywhere; the engine process starts with the first call that needs it, or with
    ``start``, and belongs to the event loop that runs then. It ends with ``shutdown``, with the
    last reference, or with this process.

    Args:
        engine_config: as ``EngineArgs.to_engine_config`` makes it.
        host: with the role front, held for this engine, which releases it.
        log_stats_interval: seconds between two lines of statistics.
        stat_loggers: classes, or functions of their arguments, that are built beside the plugins'.
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
        log_stats_interval: float = LOG_INTERVAL_S,
        stat_loggers: Sequence[Any] | None = None,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        vllm_config = VllmConfig.from_engine_config(engine_config)
        tokenizer = load_tokenizer(engine_config.model.tokenizer)
        host.calls.tell_start_once(host.roles, vllm_config)
        loggers = StatLoggers.build(host, vllm_config, stat_loggers or ())
        self._checks = ProcessorChecks.build(host, engine_config)
        self._grammars = GrammarChecks(host, engine_config)
        self._log_interval_s = log_stats_interval
        self.plugins = host.pm
        client = EngineClient(engine_config, vllm_config, loggers.record)
        super().__init__(engine_config, vllm_config, tokenizer, client, loggers)
        self._supervisor = EngineSupervisor(host, engine_config, self._client, command=command)
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
        usage_context: object = None,
        stat_loggers: Sequence[Any] | None = None,
        plugins: Sequence[Any] = (),
        plugin_settings: PluginSettings | None = None,
        log_stats_interval: float = LOG_INTERVAL_S,
    ) -> AsyncLLM:
        """
        Args:
            usage_context: who asks; programs of the ecosystem tell it, and nobody here counts.
            stat_loggers: as for the class.
            plugins: names of modules and paths of ``.py`` files, loaded in every process.
            plugin_settings: what else is wanted of plugins; nothing by default.

        Raises:
            HookserveError: a setting, a model file or an architecture that cannot work.
            hookserve.hookspecs.HostError: plugins; or another engine of this process was made with
                other plugin settings, and lives.
        """
        del usage_context
        with _front(plugins, plugin_settings) as host:
            return cls(
                engine_args.to_engine_config(host),
                host,
                log_stats_interval=log_stats_interval,
                stat_loggers=stat_loggers,
            )

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: VllmConfig,
        *,
        usage_context: object = None,
        stat_loggers: Sequence[Any] | None = None,
    ) -> AsyncLLM:
        """Of a configuration that ``EngineArgs.create_engine_config`` made, with what the program
        has changed of it since.

        Args:
            usage_context, stat_loggers: as for ``from_engine_args``.

        Raises: as ``from_engine_args``; also
            ConfigError: it was made otherwise, or changed to what cannot be.
        """
        del usage_context
        if vllm_config.engine_config is None:
            raise ConfigError(
                "from_vllm_config: this VllmConfig was put together by hand; expected one that "
                "EngineArgs.create_engine_config made"
            )
        with _front((), None) as host:
            config = fold_changes(vllm_config.engine_config, vllm_config, "from_vllm_config")
            check_model_class(config, host)
            return cls(name_engine(config), host, stat_loggers=stat_loggers)

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


@contextlib.contextmanager
def _front(plugins: Sequence[Any], plugin_settings: PluginSettings | None) -> Iterator[Host]:
    """The plugins of an engine that is made within; held on, unless that fails."""
    stays = "the engine's process cannot be handed one"
    host = open_host(("front",), plugins, plugin_settings, objects_stay=stays)
    try:
        yield host
    except BaseException:
        host.release()
        raise


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
