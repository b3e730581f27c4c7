"""``StatLoggerBase`` and ``AggregateStatLoggerBase``: what loggers of the engine's statistics may
derive from.

Names and meaning are the ecosystem's. A logger needs no base: the hook ``stat_logger`` takes any
class with these methods. Who calls them is ``stat_loggers``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from .messages import SchedulerStats
from .stats import IterationStats, MultiModalCacheStats
from .vllm_config import VllmConfig


class StatLoggerBase(ABC):
    """One logger of one engine."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        """Called with both by position."""

    @abstractmethod
    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Called once for each report of the engine; must not block.

        Args:
            scheduler_stats: ``None`` for requests that ended with the engine.
            iteration_stats: ``None`` where no request is concerned.
            mm_cache_stats: always ``None``: this engine takes text alone.
        """

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """Called once, when the engine is ready."""

    def log(self) -> None:  # noqa: B027
        """Called every stats interval; here there is nothing to write."""


class AggregateStatLoggerBase(StatLoggerBase):
    """One logger of all engines, of which a server has one."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, engine_indexes: Sequence[int] = (0,)) -> None:
        """Called with both by position."""
