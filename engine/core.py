"""``EngineCore``: scheduler and executor joined into steps, without processes or channels.

It sizes the cache, runs one step at a time and reports it. Messages and the life of the process
are ``process``'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from hookserve.hookspecs import Host

from .channel import wait_readable
from .errors import EX_SOFTWARE, HookserveError
from .executor import Executor
from .grammars import GrammarReady, Grammars
from .kv_cache_size import choose_num_blocks, longest_request
from .messages import AddRequest, EngineCoreOutput, Ready, SchedulerStats, StepOutputs
from .request import Request
from .sampling_params import SamplingParams
from .scheduler_class import make_scheduler
from .step import SchedulerOutput
from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 64
"""Prompt tokens of the warm-up: enough to learn what a token costs, few enough to be quick."""


class BooksError(HookserveError):
    """The scheduler's books contradict each other: whose block is whose is not known for sure."""

    exit_code = EX_SOFTWARE


class StepClock:
    """What steps cost: a base for every step, and a slope over its tokens.

    The estimate is for telling a long step from a stall, so it errs on the long side.
    """

    _KEEP = 0.8
    _MANY_TOKENS = 32

    def __init__(self) -> None:
        self.base_s = 0.0
        self.token_s = 0.0

    def record(self, num_tokens: int, seconds: float) -> None:
        if num_tokens >= self._MANY_TOKENS:
            self.token_s = self._blend(self.token_s, seconds / num_tokens)
        else:
            self.base_s = self._blend(self.base_s, seconds)

    def _blend(self, old: float, new: float) -> float:
        return new if new > old else self._KEEP * old + (1.0 - self._KEEP) * new

    def estimate(self, num_tokens: int) -> float:
        return self.base_s + self.token_s * num_tokens


class EngineCore:
    def __init__(self, vllm_config: VllmConfig, host: Host) -> None:
        """Load the model and allocate the cache; the engine can step afterwards.

        Raises:
            HookserveError, hookserve.hookspecs.HostError: with a sentence for the operator.
        """
        self.vllm_config = vllm_config
        self.host = host
        self.clock = StepClock()
        self.num_steps = 0
        self.grammars = Grammars(vllm_config, host)
        self._refusals: list[EngineCoreOutput] = []
        self._changed = False
        self._was_reset = False
        started = time.monotonic()
        self.executor = self._make_executor()
        try:
            self.kv_cache_bytes, self.kv_cache_reason = self._initialize_cache()
        except BaseException:
            self.executor.shutdown()  # nobody else knows its workers yet
            raise
        self.load_s = time.monotonic() - started
        self.warmup_s = 0.0

    @classmethod
    def start(cls, vllm_config: VllmConfig, host: Host) -> EngineCore:
        """One that has run its first request; no worker is left of one that could not.

        Raises:
            HookserveError, hookserve.hookspecs.HostError: with a sentence for the operator.
        """
        core = cls(vllm_config, host)
        try:
            core.warm_up()
        except BaseException:
            core.shutdown()
            raise
        return core

    def _make_executor(self) -> Executor:
        name = self.vllm_config.parallel_config.distributed_executor_backend
        executor_cls = self.host.registry("executor").resolve(name)
        claim = self.host.registry("executor").get(name)
        self._executor_owner = claim.plugin if claim is not None else None
        with self.host.enter(self._executor_owner):
            executor: Executor = executor_cls(self.vllm_config)
        return executor

    def _initialize_cache(self) -> tuple[int, str]:
        """Size and allocate the KV cache, and make the scheduler for it; bytes and the reason."""
        config = self.vllm_config
        block_bytes = self.executor.get_kv_cache_block_bytes()
        free_bytes = self.executor.determine_available_memory()
        each = f" for each of {len(block_bytes)} workers" if len(block_bytes) > 1 else ""
        num_blocks, reason = choose_num_blocks(
            config,
            block_bytes=max(block_bytes),
            free_bytes=free_bytes,
            free_reason=f"{free_bytes / 2**30:.2f} GiB are free{each}",
        )
        block_size = config.cache_config.block_size
        self.executor.initialize_cache(num_blocks)
        self.num_blocks = num_blocks
        self.num_cached_tokens = num_blocks * block_size
        """What the KV cache holds."""
        self.scheduler, self._guard = make_scheduler(config, num_blocks, block_size, self.host)
        if self.num_cached_tokens < config.model_config.max_model_len:
            logger.warning(
                "The KV cache holds %d tokens, fewer than one sequence of max_model_len %d may "
                "have; sequences end at what it holds. %s.",
                self.num_cached_tokens,
                config.model_config.max_model_len,
                reason,
            )
        return num_blocks * sum(block_bytes), reason

    def warm_up(self) -> None:
        """Run one short request through everything, so that the first real one finds all made."""
        started = time.monotonic()
        config = self.vllm_config
        longest = longest_request(config.model_config.max_model_len, self.num_cached_tokens)
        # No scheduler needs to cut it into chunks.
        budget = config.scheduler_config.max_num_batched_tokens
        length = min(WARM_UP_TOKENS, longest - 2, budget)
        request = AddRequest(
            "warm-up",
            [1 % config.model_config.vocab_size] * max(1, length),
            SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
            arrival_time=time.time(),
        )
        self.add_request(request)
        outputs: list[EngineCoreOutput] = []
        while self.has_work():
            outputs += self.step().outputs
        if outputs and outputs[-1].error is not None:
            logger.warning("The warm-up request failed: %s", outputs[-1].error)
        self._ask("reset_prefix_cache")
        self._ask("make_stats", self.num_steps, None)
        self._refusals.clear()
        self.warmup_s = time.monotonic() - started

    def ready(self) -> Ready:
        facts = self.executor.describe()
        return Ready(
            num_gpu_blocks=self.num_blocks,
            block_size=self.vllm_config.cache_config.block_size,
            kv_cache_bytes=self.kv_cache_bytes,
            kv_cache_reason=self.kv_cache_reason,
            num_threads=int(facts.pop("num_threads", 0)),
            threads_reason=str(facts.pop("threads_reason", "")),
            load_s=self.load_s,
            warmup_s=self.warmup_s,
            model_info=facts,
            worker_manifests=self.executor.worker_manifests,
        )

    # -- requests come and go -------------------------------------------------------------------

    def add_request(self, message: AddRequest) -> None:
        """Queue a request; one that can never run is refused in the next report. One whose text
        must have a form may have to wait for its grammar first."""
        self._changed = True
        if message.params.structured_outputs is None:
            self._queue(message)
            return
        ready = self.grammars.add(message)
        if ready is not None:
            self._admit(ready)

    def take_ready(self) -> None:
        """Queue the requests whose grammars have become ready, and refuse those that have none."""
        for each in self.grammars.take_ready():
            self._changed = True
            self._admit(each)

    def wait_for_grammars(self, fds: Iterable[int] = ()) -> set[int]:
        """Sleep until ``take_ready`` has something to do, or one of the descriptors has something
        to read; those that have."""
        watched = self.grammars.watched_fds()
        return wait_readable([*fds, *watched], self.grammars.timeout_s()) - {*watched}

    def _admit(self, ready: GrammarReady) -> None:
        if ready.refusal is None:
            self._queue(ready.message)
        else:
            self._refusals.append(ready.refusal)

    def _queue(self, message: AddRequest) -> None:
        try:
            request = Request(message, time.monotonic())
        except OverflowError:
            refusal: EngineCoreOutput | None = EngineCoreOutput(
                message.request_id,
                finish_reason="error",
                error="The prompt has a token id that is outside of the vocabulary.",
                is_refusal=True,
            )
        else:
            refusal = self._ask("add_request", request)
        if refusal is not None:
            self.grammars.forget(message.request_id)
            self._refusals.append(refusal)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self._changed = True
        ended = list(request_ids)
        self.grammars.forget(ended)
        self._ask("finish_requests", ended, "abort")

    def finish_request(self, request_id: str, reason: str) -> None:
        self._changed = True
        self.grammars.forget(request_id)
        self._ask("finish_requests", request_id, reason)

    def has_work(self) -> bool:
        return bool(self._ask("has_unfinished_requests"))

    def _ask(self, method: str, *args: Any) -> Any:
        """
        Raises:
            SchedulerError: the scheduler raised, in one sentence that names it.
        """
        return self._guard.call(self.scheduler, method, *args)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; whether that is done, which the next report says too."""
        if self._ask("reset_prefix_cache") is False:
            return False
        self._was_reset = self._changed = True
        return True

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        args: list[Any],
        kwargs: dict[str, Any],
        timeout: float | None = None,
    ) -> list[Any]:
        """Call a public method of every worker, or a function with every worker in this process.

        Raises:
            AttributeError: for a name that starts with an underscore, or that no worker has.
            TimeoutError: no answer of every worker within ``timeout`` seconds.
        """
        if isinstance(method, str) and method.startswith("_"):
            raise AttributeError(f"{method} is not a public method of the workers")
        answers: list[Any] = self.executor.collective_rpc(method, timeout, tuple(args), kwargs)
        return answers

    # -- steps ----------------------------------------------------------------------------------

    def step(self) -> StepOutputs:
        """Schedule, compute, take in the tokens, report.

        Raises:
            SchedulerError: the scheduler failed, or has chosen nobody for too long.
        """
        started = time.monotonic()
        if self.grammars.waiting:
            self.take_ready()
        scheduled = self._guard.schedule(self.scheduler)
        if scheduled.total_num_scheduled_tokens:
            self._guard.chose_somebody()
        elif self.has_work():
            self._guard.chose_nobody(self.scheduler)
            return self._report(self._compute(scheduled))
        outputs = self._compute(scheduled)
        self.num_steps += 1
        elapsed_s = time.monotonic() - started
        self.clock.record(scheduled.total_num_scheduled_tokens, elapsed_s)
        return self._report(outputs, elapsed_s)

    def _compute(self, scheduled: SchedulerOutput) -> list[EngineCoreOutput]:
        if self.grammars.followed:
            scheduled.grammar_output = self.grammars.masks(scheduled)
        with self.host.enter(self._executor_owner):
            result = self.executor.execute_model(scheduled)
        outputs = self._guard.update(self.scheduler, scheduled, result)
        return self._follow_grammars(outputs) if self.grammars.followed else outputs

    def _follow_grammars(self, outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """The outputs, with the ends that grammars put to requests."""
        ended = {output.request_id: output for output in self.grammars.follow(outputs)}
        for request_id, output in ended.items():
            self.grammars.forget(request_id)
            self._ask("finish_requests", request_id, output.finish_reason)
        return [ended.get(output.request_id, output) for output in outputs]

    def report_idle(self) -> StepOutputs | None:
        """What must be said without a step: refusals, and gauges that fell by aborts."""
        return self._report([]) if self._changed else None

    def _report(
        self, outputs: list[EngineCoreOutput], elapsed_s: float | None = None
    ) -> StepOutputs:
        refusals, self._refusals = self._refusals, []
        self._changed = False
        budget = self.vllm_config.scheduler_config.max_num_batched_tokens
        pending = self._ask("num_pending_tokens") if self.has_work() else None
        num_tokens = budget if pending is None else min(budget, pending)
        stats: SchedulerStats = self._ask("make_stats", self.num_steps, elapsed_s)
        if self._was_reset:
            self._was_reset = False
            emptied = msgspec.structs.replace(stats.prefix_cache_stats, reset=True)
            stats = msgspec.structs.replace(stats, prefix_cache_stats=emptied)
        if self.grammars.waiting:
            num_waiting = len(self.grammars.waiting)
            stats = msgspec.structs.replace(stats, num_skipped_waiting_reqs=num_waiting)
        return StepOutputs(
            step=self.num_steps,
            outputs=refusals + outputs,
            scheduler_stats=stats,
            next_step_estimate_s=self.clock.estimate(num_tokens),
        )

    def check_integrity(self) -> None:
        """Compare requests, queues and blocks. For idle time: takes milliseconds.

        Raises:
            BooksError: the engine must end; going on could serve one request another's cache.
        """
        try:
            with self._guard.entered():
                self.scheduler.check_integrity()
        except AssertionError as error:
            raise BooksError(
                f"the books of the KV cache do not agree: {error}; the engine ends before a "
                "request is served from another's cache. This is a fault of the engine, or of a "
                "plugin that changes how it schedules: start again without plugins "
                "(--no-plugins), and report it if it comes back"
            ) from error

    def shutdown(self) -> None:
        self.grammars.close()
        try:
            self._ask("shutdown")
        finally:
            self.executor.shutdown()
