"""``PrometheusStatLogger``: the engine's statistics as metrics; the server's ``/metrics`` reads its
``registry``, as it does that of any stat logger that has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hookserve.engine.messages import SchedulerStats
from hookserve.engine.stat_logger_base import AggregateStatLoggerBase
from hookserve.engine.stats import FinishedRequestStats, IterationStats
from hookserve.engine.vllm_config import VllmConfig
from hookserve.server.metrics import EngineMetrics


class PrometheusStatLogger(AggregateStatLoggerBase):
    """A plugin's logger that derives from it takes its place: the names are taken once."""

    yields_to_subclasses: ClassVar[bool] = True

    def __init__(self, vllm_config: VllmConfig, engine_indexes: Sequence[int] = (0,)) -> None:
        (engine_index,) = engine_indexes
        model = vllm_config.model_config
        self._config = vllm_config
        self._metrics = EngineMetrics(
            model.served_model_name, str(engine_index), model.max_model_len
        )
        self.registry = self._metrics.registry

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        del mm_cache_stats, engine_idx
        if scheduler_stats is not None:
            self._record_scheduler(scheduler_stats)
        if iteration_stats is not None:
            self._record_iteration(iteration_stats)

    def _record_scheduler(self, stats: SchedulerStats) -> None:
        metrics = self._metrics
        metrics.num_requests_running.set(stats.num_running_reqs)
        metrics.num_requests_waiting.set(stats.num_waiting_reqs)
        metrics.kv_cache_usage.set(stats.kv_cache_usage)
        if stats.num_preempted_reqs:
            metrics.num_preemptions.inc(stats.num_preempted_reqs)
        if stats.prefix_cache_stats.queries:
            metrics.prefix_queries.inc(stats.prefix_cache_stats.queries)
            metrics.prefix_hits.inc(stats.prefix_cache_stats.hits)
        if stats.iteration_details is not None:
            details = stats.iteration_details
            metrics.iteration_tokens.observe(details.num_ctx_tokens + details.num_generation_tokens)

    def _record_iteration(self, stats: IterationStats) -> None:
        metrics = self._metrics
        metrics.generation_tokens.inc(stats.num_generation_tokens)
        if stats.num_prompt_tokens:
            metrics.prompt_tokens.inc(stats.num_prompt_tokens)
            metrics.prompt_tokens_cached.inc(stats.prompt_token_stats.cached_tokens)
        for seconds in stats.time_to_first_tokens_iter:
            metrics.ttft.observe(seconds)
        for seconds in stats.inter_token_latencies_iter:
            metrics.itl.observe(seconds)
        for num_tokens in stats.max_num_generation_tokens_iter:
            metrics.request_max_generation_tokens.observe(num_tokens)
        for n in stats.n_params_iter:
            metrics.request_n.observe(n)
        for finished in stats.finished_requests:
            self._record_finished(finished)

    def _record_finished(self, request: FinishedRequestStats) -> None:
        metrics = self._metrics
        metrics.success(request.finish_reason).inc()
        metrics.request_prompt_tokens.observe(request.num_prompt_tokens)
        metrics.request_generation_tokens.observe(request.num_generation_tokens)
        if request.max_tokens_param is not None:
            metrics.request_max_tokens.observe(request.max_tokens_param)
        computed = request.num_prompt_tokens - request.num_cached_tokens
        metrics.request_computed_tokens.observe(computed)
        metrics.request_preemptions.observe(request.num_preemptions)
        metrics.e2e.observe(request.e2e_latency)
        metrics.queue_time.observe(request.queued_time)
        metrics.inference_time.observe(request.inference_time)
        metrics.prefill_time.observe(request.prefill_time)
        metrics.decode_time.observe(request.decode_time)
        if request.num_generation_tokens > 1:
            metrics.tpot.observe(request.mean_time_per_output_token)

    def log(self) -> None:
        """Nothing to do: Prometheus asks by itself."""

    def log_engine_initialized(self) -> None:
        cache = self._config.cache_config
        self._metrics.set_cache_config(
            {
                "block_size": str(cache.block_size),
                "num_gpu_blocks": str(cache.num_gpu_blocks),
                "enable_prefix_caching": str(cache.enable_prefix_caching),
                "cache_dtype": cache.cache_dtype,
            }
        )
