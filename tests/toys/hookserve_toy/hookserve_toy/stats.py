"""A stat logger that writes down that it was built and that it was told something."""

from __future__ import annotations

from typing import Any

from .trace import note

note("import", module=__name__)


class ToyStatLogger:
    def __init__(self, config: Any, engine_index: int = 0) -> None:
        note("stat_logger_built", engine_index=engine_index)
        self.told = 0

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self.told += 1
        if self.told == 1:
            note("stat_logger_told", running=scheduler_stats.num_running_reqs)

    def log(self) -> None:
        note("stat_logger_log")

    def log_engine_initialized(self) -> None:
        note("stat_logger_initialized")
