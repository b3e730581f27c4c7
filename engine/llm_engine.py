"""``LLMEngine``: scheduler, worker and text in one process, and the simple loop over them: add
requests, ``step``, take the outputs.

The caller's thread does the work. Batches are ``llm``'s; an engine in a process of its own is
``async_llm``'s.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs import Host, HostError, PluginSettings
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.report import ProcessReport

from .config import EngineConfig
from .core import EngineCore
from .errors import (
    EngineDeadError,
    HookserveError,
    InvalidRequestError,
    WorkerError,
    WorkerPluginsError,
)
from .grammar_checks import GrammarChecks
from .home_process import HomeProcess
from .input_processor import InputProcessor, ReadyRequest
from .io_processor import open_io_processor
from .messages import AddRequest, StepOutputs
from .not_served import (
    NO_LORA,
    NO_METRICS,
    NO_PICTURES,
    NO_PROFILE,
    NO_SLEEP_OFFLINE,
    not_serving,
)
from .offline_host import check_no_objects, open_host
from .output_assembler import OutputAssembler
from .outputs import RequestOutput
from .plugin_restarts import PluginRestarts
from .processor_checks import ProcessorChecks
from .prompts import PromptInput, read_prompt
from .reply_parsers import ReplyParsers
from .sampling_params import SamplingParams
from .stat_loggers import LOG_INTERVAL_S, StatLoggers
from .stats import FrontStats, IterationStats
from .text.tokenizer import Tokenizer, load_tokenizer
from .vllm_config import ModelConfig, VllmConfig, set_current_vllm_config

if TYPE_CHECKING:
    from .engine_args import EngineArgs

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A sequence in the engine."""

    assembler: OutputAssembler
    index: int


_ABSENT = {
    **dict.fromkeys(("add_lora", "list_loras", "pin_lora", "remove_lora"), NO_LORA),
    "get_metrics": NO_METRICS,
    **dict.fromkeys(("reset_encoder_cache", "reset_mm_cache"), NO_PICTURES),
    **dict.fromkeys(("sleep", "wake_up"), NO_SLEEP_OFFLINE),
    **dict.fromkeys(("start_profile", "stop_profile"), NO_PROFILE),
}
"""What the ecosystem's ``LLMEngine`` has besides."""


@not_serving(_ABSENT)
class LLMEngine:
    """Not for several threads at once. An exception out of ``step`` ends the engine: which of its
    books were kept to the end is not known then.

    Args:
        engine_config: as ``EngineArgs.to_engine_config`` makes it.
        host: with the roles front, engine and worker, held for this engine, which releases it.
        log_stats_interval: seconds between two calls of the stat loggers' ``log``.
        stat_loggers: classes, or functions of their arguments, that are built beside the plugins'
            where there are statistics.

    Attributes:
        vllm_config, tokenizer, input_processor, reply_parsers: for whoever wants to look.
        io_processor: the chosen one, for a caller of its own.
        plugins: the plugin manager of this process; ``describe(all_processes=True)`` asks worker
            processes too.
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        host: Host,
        *,
        log_stats_interval: float = LOG_INTERVAL_S,
        stat_loggers: Sequence[Any] | None = None,
    ) -> None:
        self.engine_config = engine_config
        self.vllm_config = VllmConfig.from_engine_config(engine_config)
        self.tokenizer: Tokenizer = load_tokenizer(engine_config.model.tokenizer)
        self._host = host
        self.plugins = host.pm
        self._home = HomeProcess()
        host.calls.tell_start_once(host.roles, self.vllm_config)
        self._log_stats = engine_config.log_stats
        self._loggers = (
            StatLoggers.build(host, self.vllm_config, stat_loggers or ())
            if self._log_stats
            else StatLoggers()
        )
        self._stats = FrontStats()
        self._log_interval_s = log_stats_interval
        self._logged_at = time.monotonic()
        self._core: EngineCore | None = None
        self._ids = itertools.count(1)
        self._requests: dict[str, list[str]] = {}
        """The engine's ids of each request that has not ended."""
        self._running: dict[str, _Running] = {}
        self._in_step = threading.RLock()
        self._death = ""
        """Why nothing can be asked of this engine any more."""
        try:
            model = engine_config.model
            self.reply_parsers = ReplyParsers.build(
                host, self.tokenizer, model.tool_call_parser, model.reasoning_parser
            )
            self.io_processor = open_io_processor(host, self.vllm_config, self.tokenizer)
            self.input_processor = self._start()
        except BaseException:
            self._stop()
            raise
        # Weakly: a plugin manager must not keep an engine alive that nobody uses any more.
        workers = weakref.WeakMethod(self._describe_workers)
        self._ask_workers = lambda: [] if (ask := workers()) is None else ask()
        self.plugins.others.append(self._ask_workers)

    def _start(self) -> InputProcessor:
        with set_current_vllm_config(self.vllm_config):
            core = self._make_core()
        self._loggers.log_engine_initialized()
        checks = ProcessorChecks.build(self._host, self.engine_config)
        grammars = GrammarChecks(self._host, self.engine_config)
        return InputProcessor(
            self.engine_config, self.tokenizer, core.num_cached_tokens, checks, grammars
        )

    def _make_core(self) -> EngineCore:
        """Again without the plugins that fail or crash in a worker process alone."""
        restarts = PluginRestarts(self._host)
        while True:
            try:
                core = self._core = EngineCore.start(self.vllm_config, self._host)
                return core
            except (WorkerPluginsError, WorkerError) as error:
                if not error.failures:
                    raise
                restarts.decide(error.failures)

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
    ) -> LLMEngine:
        """
        Args:
            usage_context: who asks; programs of the ecosystem tell it, and nobody here counts.
            stat_loggers: as for the class.
            plugins: names of modules, paths of ``.py`` files, and, with one rank, objects.
            plugin_settings: what else is wanted of plugins; nothing by default.

        Raises:
            HookserveError: a setting, a model file or an architecture that cannot work.
            hookserve.hookspecs.HostError: plugins; or another engine of this process was made with
                other plugin settings, and lives.
        """
        del usage_context
        apart = "worker processes cannot be handed one"
        ranks = engine_args.tensor_parallel_size
        host = open_host(
            ("front", "engine", "worker"),
            plugins,
            plugin_settings,
            objects_stay=None if ranks == 1 else apart,
        )
        try:
            config = engine_args.to_engine_config(host)
            if config.parallel.workers_are_apart:  # a plugin may have asked for that
                check_no_objects(host.objects, apart)
            return cls(
                config, host, log_stats_interval=log_stats_interval, stat_loggers=stat_loggers
            )
        except BaseException:
            host.release()
            raise

    @property
    def core(self) -> EngineCore:
        """The engine behind it.

        Raises:
            EngineDeadError: after ``shutdown``, after a step that failed, or in a process that was
                forked.
        """
        self._home.check()
        if self._death or self._core is None:
            raise EngineDeadError(self._death)
        return self._core

    @property
    def model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    # -- requests come and go -------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: PromptInput,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Check a request and queue it.

        Raises:
            InvalidRequestError, SamplingParamsError: it cannot run; or the id is in use.
            EngineDeadError: after ``shutdown``, or after a step that failed.
        """
        ready = self.input_processor.prepare(
            read_prompt(prompt),
            params if params is not None else self.input_processor.default_params(),
            priority=priority,
        )
        self.add_ready(request_id, ready)

    def add_ready(self, request_id: str, request: ReadyRequest) -> None:
        """As ``add_request``, for what was checked before."""
        core = self.core
        if request_id in self._requests:
            raise InvalidRequestError(f"request_id {request_id!r} is in use", param="request_id")
        assembler = OutputAssembler(
            request_id, request.prompt, request.prompt_token_ids, request.params, self.tokenizer
        )
        engine_ids = self._requests[request_id] = []
        siblings = assembler.siblings()
        for index, child in enumerate(assembler.children):
            engine_id = f"req-{next(self._ids)}"
            engine_ids.append(engine_id)
            self._running[engine_id] = _Running(assembler, index)
            if self._log_stats:
                state = self._stats.add_request(
                    engine_id,
                    num_prompt_tokens=len(request.prompt_token_ids),
                    max_tokens=child.max_tokens,
                    siblings=siblings,
                )
                assembler.metrics = assembler.metrics or state
            core.add_request(
                AddRequest(
                    engine_id,
                    request.prompt_token_ids,
                    child,
                    time.time(),
                    request.cache_salt,
                    request.priority,
                )
            )

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Forget requests and free what they hold; ids that are not known are passed over."""
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        engine_ids = [each for name in names for each in self._requests.pop(name, ())]
        gone = [each for each in engine_ids if self._running.pop(each, None) is not None]
        for each in gone:
            self._stats.finish(each, "abort")
        if gone and not self._death and self._home.is_here:
            self.core.abort_requests(gone)

    def has_unfinished_requests(self) -> bool:
        return bool(self._running)

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    # -- steps ----------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """One step of the engine, and what it brought for each request that the caller is to hear
        of. A request that failed alone says so in its output.

        Raises:
            EngineDeadError: after ``shutdown``, or after a step that failed.
            Exception: what a model or plugin raised; the engine is dead then.
        """
        with self._in_step:
            core = self.core
            try:
                if core.grammars.waiting and not core.has_work():
                    core.wait_for_grammars()
                    core.take_ready()
                report = core.step() if core.has_work() else core.report_idle()
            except BaseException as error:
                said = isinstance(error, HookserveError | HostError)
                what = str(error) if said else describe_error(error)
                self._death = f"a step of this engine failed: {what}; make a new one"
                self._requests.clear()
                self._running.clear()
                raise
        return [] if report is None else self._take(report)

    def _take(self, report: StepOutputs) -> list[RequestOutput]:
        iteration = self._stats.observe(report) if self._log_stats and report.outputs else None
        outputs = []
        for output in report.outputs:
            running = self._running.get(output.request_id)
            if running is None:
                continue
            assembler, index = running.assembler, running.index
            delta = assembler.take(index, output)
            if delta.stopped_by_text:
                self._finish(output.request_id, assembler, index)
            if delta.finish_reason is not None:
                del self._running[output.request_id]
            if assembler.is_finished:
                self._requests.pop(assembler.request_id, None)
            shown = assembler.output(index)
            if shown is not None:
                outputs.append(shown)
        if self._log_stats:
            self._record(report, iteration)
        return outputs

    def _finish(self, engine_id: str, assembler: OutputAssembler, index: int) -> None:
        """A stop was found in text; the engine may have ended the request by itself meanwhile."""
        self.core.finish_request(engine_id, "stop")
        self._stats.finish(engine_id, "stop", num_generation_tokens=assembler.num_tokens(index))

    def _record(self, report: StepOutputs, iteration: IterationStats | None) -> None:
        self._loggers.record(report.scheduler_stats, self._stats.add_finished(iteration))
        now = time.monotonic()
        if now - self._logged_at >= self._log_interval_s:
            self._logged_at = now
            self._loggers.log()

    # -- the rest -------------------------------------------------------------------------------

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a public method of every worker, or a function that is given the worker first; one
        result each.

        Raises:
            TypeError: a function, and the workers are other processes.
            AttributeError: for a name that starts with an underscore, or that no worker has.
            EngineDeadError: after ``shutdown``, or after a step that failed.
        """
        return self.core.collective_rpc(method, list(args), dict(kwargs or {}), timeout)

    def _describe_workers(self) -> list[ProcessReport]:
        """Between two steps: workers answer one question at a time."""
        with self._in_step:
            return [] if self._core is None else self._core.executor.describe_plugins()

    def shutdown(self) -> None:
        """Free the model and the cache, and end worker processes; once, and nothing of it in a
        process that was forked."""
        if self._core is not None and self._home.is_here:
            self._death = "this engine was shut down"
            self.plugins.others.remove(self._ask_workers)
            self._requests.clear()
            self._running.clear()
            try:
                with self._in_step:  # a thread that the interpreter ends in tensor code aborts all
                    self._stop()
            finally:
                self._host.release()

    def _stop(self) -> None:
        core, self._core = self._core, None
        self._loggers.shutdown()
        if core is not None:
            core.shutdown()
