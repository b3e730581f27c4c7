"""Logs that the engine is ready, and now and then how many tokens it made."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.metrics.loggers import StatLoggerBase

logger = init_logger("vllm.toy_plugin")


class ToyStatLogger(StatLoggerBase):
    def __init__(self, vllm_config: VllmConfig, engine_idx: int = 0) -> None:
        self.engine_idx = engine_idx
        self.num_tokens = 0

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if iteration_stats is not None:
            self.num_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        logger.info("Toy: engine %d is ready", self.engine_idx)

    def log(self) -> None:
        logger.info("Toy: engine %d made %d tokens", self.engine_idx, self.num_tokens)
