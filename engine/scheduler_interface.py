"""``SchedulerInterface``: what the engine asks of a scheduler, and what one may be able to do.

``scheduler`` has the default; a plugin offers another by the hook ``scheduler``. Names and meaning
are the ecosystem's. Which class is chosen, and whether it can be used, is ``scheduler_class``'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar

from hookserve.hookspecs.calls import Calls

from .messages import EngineCoreOutput, SchedulerStats
from .request import Request
from .step import ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "chunked_prefill": "a prompt longer than a step's budget is computed in chunks",
        "prefix_caching": "the known beginning of a prompt is not computed again",
        "preemption": "where the KV cache is full a running request gives way",
        "priority": "requests are served by their own priority",
        "order_waiting": "the hook order_waiting is asked",
        "select_victim": "the hook select_victim is asked",
        "after_schedule": "the hook after_schedule is told",
    }
)
"""What the default can do, and any other may lack."""
CALLED_WITH: Mapping[str, int] = MappingProxyType(
    {
        "__init__": 4,
        "add_request": 1,
        "finish_requests": 2,
        "get_num_unfinished_requests": 0,
        "get_request_counts": 0,
        "schedule": 0,
        "update_from_output": 2,
        "reset_prefix_cache": 0,
        "has_unfinished_requests": 0,
        "get_kv_cache_usage": 0,
        "num_pending_tokens": 0,
        "make_stats": 2,
        "check_integrity": 0,
        "shutdown": 0,
    }
)
"""What the engine calls, and with how many arguments, all by position."""


class SchedulerInterface(ABC):
    """``schedule`` and ``update_from_output`` alternate, in one thread. Whatever a method raises
    ends the engine: nobody else knows which block is whose."""

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """Those of ``CAPABILITIES`` that the class has. What is missing is told at the start."""
    called_with: ClassVar[Mapping[str, int]] = CALLED_WITH
    """The methods of the class that are called, and with how many arguments."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        num_blocks: int,
        block_size: int,
        calls: Calls | None = None,
    ) -> None:
        """
        Args:
            vllm_config: limits, and whether prefixes are cached.
            num_blocks: blocks of the KV cache, ``1 … num_blocks``; block 0 is written by nobody.
            block_size: tokens a block.
            calls: the plugins' hooks; ``None``: there are no plugins.
        """
        del vllm_config, num_blocks, block_size, calls

    @classmethod
    def make(
        cls, vllm_config: VllmConfig, num_blocks: int, block_size: int, calls: Calls | None
    ) -> SchedulerInterface:
        """What the engine drives: an object of the class. A class with methods of another form
        answers with one that calls them."""
        return cls(vllm_config, num_blocks, block_size, calls)

    @abstractmethod
    def add_request(self, request: Request) -> EngineCoreOutput | None:
        """Queue the request, or return at once the refusal of one that can never run."""

    @abstractmethod
    def finish_requests(self, request_ids: str | Iterable[str], reason: str) -> list[Request]:
        """End requests from outside, such as by ``"abort"``; unknown ids are passed over.

        Returns: those that were ended.
        """

    @abstractmethod
    def get_num_unfinished_requests(self) -> int:
        """Requests that wait or run."""

    @abstractmethod
    def get_request_counts(self) -> tuple[int, int]:
        """How many run, and how many wait."""

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step and give their requests blocks. An output without
        tokens while somebody waits is tried again, and ends the engine after some seconds."""

    @abstractmethod
    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Take in the sampled tokens; what is to be told of each request that got some."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool | None:
        """Forget every cached prefix; running requests keep their blocks. False: it is not done."""

    def has_unfinished_requests(self) -> bool:
        return self.get_num_unfinished_requests() > 0

    def get_kv_cache_usage(self) -> float:
        """Share of the blocks that are held, 0 to 1."""
        return 0.0

    def num_pending_tokens(self) -> int | None:
        """Known tokens that no step has computed yet, for an estimate of the next step's time;
        ``None``: as many as a step may have."""
        return None

    def make_stats(self, step_counter: int, elapsed_s: float | None = None) -> SchedulerStats:
        """Gauges now, and counts since the last call.

        Args:
            elapsed_s: how long the step took; ``None``: there was none.
        """
        del elapsed_s
        num_running, num_waiting = self.get_request_counts()
        return SchedulerStats(
            num_running_reqs=num_running,
            num_waiting_reqs=num_waiting,
            kv_cache_usage=self.get_kv_cache_usage(),
            step_counter=step_counter,
        )

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the books disagree; for idle time. Here nothing is known."""
        return None

    def shutdown(self) -> None:
        """The engine ends. Here nothing is to be given back."""
        return None
