"""Counts the engine's reports and the tokens in them; its second argument has a name of its own."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

logger = init_logger("vllm.samples.stats")


class SampleStatLogger(StatLoggerBase):
    def __init__(self, vllm_config: VllmConfig, engine_idx: int = 0) -> None:
        self.vllm_config = vllm_config
        self.engine_idx = engine_idx
        self.num_reports = self.num_tokens = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self.num_reports += 1
        if iteration_stats is not None:
            self.num_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        logger.info("sample of engine %d is there", self.engine_idx)

    def log(self) -> None:
        logger.info("sample: %d tokens, reports: %s", self.num_tokens, self.num_reports > 0)
