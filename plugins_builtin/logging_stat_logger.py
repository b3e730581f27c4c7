"""``LoggingStatLogger``: one line every interval about what the engine did in it."""

from __future__ import annotations

import logging
import time

from hookserve.engine.messages import SchedulerStats
from hookserve.engine.stat_logger_base import StatLoggerBase
from hookserve.engine.stats import IterationStats
from hookserve.engine.vllm_config import VllmConfig

logger = logging.getLogger("hookserve.stats")


class LoggingStatLogger(StatLoggerBase):
    """Silent while nothing happens: an idle server writes one line, and then none."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._config = vllm_config
        self._engine_index = engine_index
        self._scheduler = SchedulerStats()
        self._was_idle = False
        self._reset(time.monotonic())

    def _reset(self, now: float) -> None:
        self._since = now
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_preempted = 0
        self._num_queries = 0
        self._num_hits = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        del mm_cache_stats, engine_idx
        if iteration_stats is not None:
            self._num_generation_tokens += iteration_stats.num_generation_tokens
        if scheduler_stats is not None:
            self._scheduler = scheduler_stats
            self._num_prompt_tokens += scheduler_stats.num_prompt_tokens
            self._num_preempted += scheduler_stats.num_preempted_reqs
            self._num_queries += scheduler_stats.prefix_cache_stats.queries
            self._num_hits += scheduler_stats.prefix_cache_stats.hits

    def log(self) -> None:
        now = time.monotonic()
        seconds = max(now - self._since, 1e-9)
        stats = self._scheduler
        is_idle = not (
            self._num_prompt_tokens
            or self._num_generation_tokens
            or stats.num_running_reqs
            or stats.num_waiting_reqs
        )
        if not (is_idle and self._was_idle):
            logger.info("%s", self._line(seconds))
        self._was_idle = is_idle
        self._reset(now)

    def _line(self, seconds: float) -> str:
        stats = self._scheduler
        hit_rate = 100.0 * self._num_hits / self._num_queries if self._num_queries else 0.0
        parts = [
            f"Engine {self._engine_index:03d}: "
            f"Avg prompt throughput: {self._num_prompt_tokens / seconds:.1f} tokens/s",
            f"Avg generation throughput: {self._num_generation_tokens / seconds:.1f} tokens/s",
            f"Running: {stats.num_running_reqs} reqs",
            f"Waiting: {stats.num_waiting_reqs} reqs",
        ]
        if self._num_preempted:
            parts.append(f"Preemptions: {self._num_preempted}")
        parts += [
            f"KV cache usage: {100.0 * stats.kv_cache_usage:.1f}%",
            f"Prefix cache hit rate: {hit_rate:.1f}%",
        ]
        return ", ".join(parts)

    def log_engine_initialized(self) -> None:
        num_blocks = self._config.cache_config.num_gpu_blocks
        if num_blocks is not None:
            block_size = self._config.cache_config.block_size
            logger.info(
                "Engine %03d: KV cache of %d blocks, %d tokens",
                self._engine_index,
                num_blocks,
                num_blocks * block_size,
            )
