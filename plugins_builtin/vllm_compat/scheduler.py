"""Schedulers of the ecosystem's form: what plugins derive from, and what calls them.

The decisions are those of ``hookserve.engine.scheduler``, and a part of it that a subclass
replaces is replaced here too. What differs is the form: arguments by name, statuses instead of
reasons, answers by client. ``SchedulerDriver`` gives the engine what it asks for.
"""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from hookserve.engine.kv_cache import KVCacheManager
from hookserve.engine.messages import EngineCoreOutput, SchedulerStats
from hookserve.engine.request import Request, RequestStatus
from hookserve.engine.scheduler import Scheduler as EngineScheduler
from hookserve.engine.scheduler_hooks import SchedulerHooks
from hookserve.engine.scheduler_interface import SchedulerInterface as EngineInterface
from hookserve.engine.step import ModelRunnerOutput, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs.calls import Calls

CLIENT = 0
"""The index of the one front that there is."""

CALLED_WITH: Mapping[str, int] = MappingProxyType(
    {
        "add_request": 1,
        "finish_requests": 2,
        "get_num_unfinished_requests": 0,
        "get_request_counts": 0,
        "schedule": 0,
        "update_from_output": 2,
        "reset_prefix_cache": 0,
        "has_unfinished_requests": 0,
        "get_kv_cache_usage": 0,
        "make_stats": 0,
        "shutdown": 0,
    }
)


class PauseState(enum.IntEnum):
    """What a scheduler may be told to start; nobody tells it here."""

    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


@dataclass
class KVCacheSize:
    """What a scheduler is told of the KV cache: blocks of one group, which all layers share."""

    num_blocks: int
    kv_cache_tensors: list[Any] = field(default_factory=list)
    """Empty: the tensors are the workers'."""
    kv_cache_groups: list[Any] = field(default_factory=list)
    """Empty: which layers there are is the workers' to know."""


@dataclass
class EngineCoreOutputs:
    """What one step tells one front."""

    engine_index: int = 0
    outputs: Sequence[EngineCoreOutput] = ()
    scheduler_stats: SchedulerStats | None = None
    """``None``: statistics are asked for by ``make_stats``."""
    finished_requests: set[str] | None = None


class SchedulerInterface(ABC):
    """What is asked of a scheduler. ``get_grammar_bitmask``, ``update_draft_token_ids``,
    ``set_pause_state`` and ``reset_encoder_cache`` are not: the engine keeps grammars itself, and
    has none of the rest."""

    capabilities: ClassVar[frozenset[str]] = frozenset()
    called_with: ClassVar[Mapping[str, int]] = CALLED_WITH

    @classmethod
    def make(
        cls, vllm_config: VllmConfig, num_blocks: int, block_size: int, calls: Calls | None
    ) -> EngineInterface:
        return drive(cls, vllm_config, num_blocks, block_size, calls)

    @abstractmethod
    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Choose the next step."""

    @abstractmethod
    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in the sampled tokens; what is to be told, by client."""

    @abstractmethod
    def add_request(self, request: Request) -> None:
        """Queue the request."""

    @abstractmethod
    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests from outside; ``None``: all of them."""

    @abstractmethod
    def get_num_unfinished_requests(self) -> int:
        """Requests that wait or run."""

    @abstractmethod
    def get_request_counts(self) -> tuple[int, int]:
        """How many run, and how many wait."""

    @abstractmethod
    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget every cached prefix; whether that is done."""

    @abstractmethod
    def make_stats(self) -> SchedulerStats | None:
        """Gauges now, and counts since the last call."""

    @abstractmethod
    def shutdown(self) -> None:
        """The engine ends."""

    def has_unfinished_requests(self) -> bool:
        return self.get_num_unfinished_requests() > 0

    def get_kv_cache_usage(self) -> float:
        return 0.0


class Scheduler(EngineScheduler):
    """The engine's own scheduler in the ecosystem's form.

    Args:
        vllm_config: limits, and whether prefixes are cached.
        kv_cache_config: has the number of blocks as ``num_blocks``.
        structured_output_manager: ``None``: the engine follows grammars itself.
        block_size: tokens a block; ``None``: as the configuration says.
        hash_block_size, mm_registry: as vLLM passes them; prefixes are found by whole blocks, and
            there is text alone.
        include_finished_set, log_stats: kept as attributes, for subclasses.
    """

    called_with: ClassVar[Mapping[str, int]] = CALLED_WITH

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: Any,
        structured_output_manager: Any = None,
        block_size: int | None = None,
        hash_block_size: int | None = None,
        mm_registry: Any = None,
        include_finished_set: bool = False,
        log_stats: bool = False,
    ) -> None:
        self.block_size = block_size or vllm_config.cache_config.block_size
        super().__init__(vllm_config, kv_cache_config.num_blocks, self.block_size)
        self.vllm_config = vllm_config
        self.kv_cache_config = kv_cache_config
        self.structured_output_manager = structured_output_manager
        self.hash_block_size = hash_block_size
        self.mm_registry = mm_registry
        self.include_finished_set = include_finished_set
        self.log_stats = log_stats
        self.scheduler_config = vllm_config.scheduler_config
        self.cache_config = vllm_config.cache_config
        self.parallel_config = vllm_config.parallel_config
        self.lora_config = None
        self.connector = None
        self.ec_connector = None
        self.num_spec_tokens = 0
        self.refusals: list[EngineCoreOutput] = []
        """Of requests that can never run, until the engine takes them."""
        self.last_step: tuple[int, float | None] = (0, None)
        """For the statistics: which step it was, and the seconds that it took."""

    @classmethod
    def make(
        cls, vllm_config: VllmConfig, num_blocks: int, block_size: int, calls: Calls | None
    ) -> EngineInterface:
        return drive(cls, vllm_config, num_blocks, block_size, calls)

    # -- the ecosystem's names ------------------------------------------------------------------

    @property
    def max_num_running_reqs(self) -> int:
        return self.max_num_seqs

    @max_num_running_reqs.setter
    def max_num_running_reqs(self, value: int) -> None:
        self.max_num_seqs = value

    @property
    def max_num_scheduled_tokens(self) -> int:
        return self.max_num_batched_tokens

    @max_num_scheduled_tokens.setter
    def max_num_scheduled_tokens(self, value: int) -> None:
        self.max_num_batched_tokens = value

    @property
    def kv_cache_manager(self) -> KVCacheManager:
        return self.kv_cache

    @property
    def policy(self) -> str:
        return self.scheduler_config.policy

    def has_finished_requests(self) -> bool:
        """Whether the workers are still to be told of requests that ended."""
        return bool(self.finished_req_ids)

    def has_requests(self) -> bool:
        return self.has_unfinished_requests() or self.has_finished_requests()

    # -- the ecosystem's forms ------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        refusal = super().add_request(request)
        if refusal is not None:
            self.refusals.append(refusal)

    def finish_requests(  # type: ignore[override]
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests from outside; ``None``: all of them.

        Raises:
            ValueError: the status is not that of a request that ended.
        """
        reason = RequestStatus.get_finished_reason(finished_status)
        if reason is None:
            raise ValueError(f"finish_requests: {finished_status!r} is no finished status")
        ids = list(self.requests) if request_ids is None else request_ids
        return super().finish_requests(ids, reason.value)

    def update_from_output(  # type: ignore[override]
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        return {CLIENT: EngineCoreOutputs(outputs=outputs)}

    def reset_prefix_cache(  # type: ignore[override]
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget every cached prefix; running requests keep their blocks.

        Raises:
            ValueError: anything else is to be reset too.
        """
        if reset_running_requests or reset_connector:
            raise ValueError(
                "reset_prefix_cache: running requests keep their blocks, and there is no "
                "connector; call it without arguments"
            )
        super().reset_prefix_cache()
        return True

    def make_stats(self) -> SchedulerStats:  # type: ignore[override]
        return super().make_stats(*self.last_step)


SchedulerInterface.register(Scheduler)


class AsyncScheduler(Scheduler):
    """The same: one step is under way at a time, so none is scheduled ahead of its tokens."""


class SchedulerDriver(EngineInterface):
    """Calls a scheduler of the ecosystem's form as the engine calls its own."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def add_request(self, request: Request) -> EngineCoreOutput | None:
        self.scheduler.add_request(request)
        refusals = self._refusals()
        if refusals and refusals[-1].request_id == request.request_id:
            return refusals.pop()
        return None

    def _refusals(self) -> list[EngineCoreOutput]:
        """Those that the engine was not told of yet, also of requests that were held back."""
        found: list[EngineCoreOutput] = getattr(self.scheduler, "refusals", [])
        return found

    def finish_requests(self, request_ids: str | Iterable[str], reason: str) -> list[Request]:
        ended = self.scheduler.finish_requests(request_ids, RequestStatus.finished_by(reason))
        return [] if ended is None else list(ended)

    def get_num_unfinished_requests(self) -> int:
        return int(self.scheduler.get_num_unfinished_requests())

    def has_unfinished_requests(self) -> bool:
        return bool(self.scheduler.has_unfinished_requests())

    def get_request_counts(self) -> tuple[int, int]:
        num_running, num_waiting = self.scheduler.get_request_counts()
        return num_running, num_waiting

    def schedule(self) -> SchedulerOutput:
        output: SchedulerOutput = self.scheduler.schedule()
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        answer = self.scheduler.update_from_output(scheduler_output, model_runner_output)
        if not isinstance(answer, Mapping):
            raise TypeError(
                f"a {type(answer).__name__}; expected a dict with the EngineCoreOutputs of each "
                "client"
            )
        refusals = self._refusals()
        outputs = [*refusals, *(output for told in answer.values() for output in told.outputs)]
        refusals.clear()
        return outputs

    def reset_prefix_cache(self) -> bool:
        return bool(self.scheduler.reset_prefix_cache())

    def get_kv_cache_usage(self) -> float:
        return float(self.scheduler.get_kv_cache_usage())

    def num_pending_tokens(self) -> int | None:
        if isinstance(self.scheduler, EngineScheduler):
            return self.scheduler.num_pending_tokens()
        return None

    def make_stats(self, step_counter: int, elapsed_s: float | None = None) -> SchedulerStats:
        self.scheduler.last_step = step_counter, elapsed_s
        stats: SchedulerStats | None = self.scheduler.make_stats()
        if stats is None:
            return super().make_stats(step_counter, elapsed_s)
        return msgspec.structs.replace(stats, step_counter=step_counter)

    def check_integrity(self) -> None:
        if isinstance(self.scheduler, EngineScheduler):
            self.scheduler.check_integrity()

    def shutdown(self) -> None:
        self.scheduler.shutdown()


def drive(
    cls: type[Any],
    vllm_config: VllmConfig,
    num_blocks: int,
    block_size: int,
    calls: Calls | None,
) -> SchedulerDriver:
    """An object of the class, built with those of vLLM's arguments that it takes."""
    offered = {
        "vllm_config": vllm_config,
        "kv_cache_config": KVCacheSize(num_blocks),
        "structured_output_manager": None,
        "block_size": block_size,
        "hash_block_size": block_size,
        "include_finished_set": False,
        "log_stats": vllm_config.observability_config.log_stats,
    }
    parameters = inspect.signature(cls).parameters.values()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = offered if takes_all else [each.name for each in parameters if each.name in offered]
    scheduler = cls(**{name: offered[name] for name in names})
    if isinstance(scheduler, EngineScheduler):
        scheduler.hooks = SchedulerHooks(calls)
    return SchedulerDriver(scheduler)
