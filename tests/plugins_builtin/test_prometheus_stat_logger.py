"""The engine's metrics, from statistics given by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hookserve.engine.messages import PrefixCacheStats, SchedulerIterationDetails, SchedulerStats
from hookserve.engine.stats import FinishedRequestStats, IterationStats, PromptTokenStats
from hookserve.plugins_builtin.prometheus_stat_logger import PrometheusStatLogger
from hookserve.server.metrics import render


@pytest.fixture
def stat_logger() -> PrometheusStatLogger:
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="m", max_model_len=100)
    )
    return PrometheusStatLogger(config, [0])


def samples(stat_logger: PrometheusStatLogger) -> dict[str, float]:
    """Value by name without the prefix; of a series by reason, with the reason."""
    text, _ = render(stat_logger.registry, set())
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            name = sample.name.removeprefix("hookserve_")
            reason = sample.labels.get("finished_reason")
            if "le" not in sample.labels:
                found[f"{name}:{reason}" if reason else name] = sample.value
    return found


def test_gauges_and_counters_of_the_scheduler(stat_logger: PrometheusStatLogger) -> None:
    for preempted in (2, 1):
        stat_logger.record(
            SchedulerStats(
                num_running_reqs=3,
                num_waiting_reqs=4,
                kv_cache_usage=0.5,
                num_preempted_reqs=preempted,
                prefix_cache_stats=PrefixCacheStats(requests=1, queries=50, hits=32),
                iteration_details=SchedulerIterationDetails(1, 1, 18, 3, 3),
            ),
            None,
        )
    seen = samples(stat_logger)
    assert (seen["num_requests_running"], seen["num_requests_waiting"]) == (3, 4)
    assert seen["kv_cache_usage_perc"] == 0.5
    assert seen["num_preemptions_total"] == 3
    assert (seen["prefix_cache_queries_total"], seen["prefix_cache_hits_total"]) == (100, 64)
    assert (seen["iteration_tokens_total_count"], seen["iteration_tokens_total_sum"]) == (2, 42)


def test_times_and_tokens_of_requests(stat_logger: PrometheusStatLogger) -> None:
    stat_logger.record(
        None,
        IterationStats(
            num_generation_tokens=5,
            prompt_token_stats=PromptTokenStats(computed=6, local_cache_hit=4),
            time_to_first_tokens_iter=[0.25, 0.75],
            inter_token_latencies_iter=[0.125],
            max_num_generation_tokens_iter=[7],
            n_params_iter=[2],
            finished_requests=[
                FinishedRequestStats(
                    finish_reason="length",
                    request_id="a",
                    e2e_latency=4.0,
                    num_prompt_tokens=10,
                    num_generation_tokens=7,
                    max_tokens_param=20,
                    queued_time=0.5,
                    prefill_time=0.5,
                    inference_time=3.5,
                    decode_time=3.0,
                    mean_time_per_output_token=0.5,
                    num_cached_tokens=4,
                    num_preemptions=1,
                ),
                FinishedRequestStats("abort", "b", num_prompt_tokens=1, num_generation_tokens=1),
            ],
        ),
    )
    seen = samples(stat_logger)
    sums = {
        "time_to_first_token_seconds": 1.0,
        "inter_token_latency_seconds": 0.125,
        "request_time_per_output_token_seconds": 0.5,
        "e2e_request_latency_seconds": 4.0,
        "request_queue_time_seconds": 0.5,
        "request_inference_time_seconds": 3.5,
        "request_prefill_time_seconds": 0.5,
        "request_decode_time_seconds": 3.0,
        "request_prompt_tokens": 11.0,
        "request_generation_tokens": 8.0,
        "request_params_max_tokens": 20.0,
        "request_params_n": 2.0,
        "request_max_num_generation_tokens": 7.0,
        "request_prefill_kv_computed_tokens": 7.0,
        "request_num_preemptions": 1.0,
    }
    assert {name: seen[f"{name}_sum"] for name in sums} == sums
    assert (seen["prompt_tokens_total"], seen["prompt_tokens_cached_total"]) == (10, 4)
    assert seen["generation_tokens_total"] == 5
    by_reason = {
        name.partition(":")[2]: value
        for name, value in seen.items()
        if name.startswith("request_success_total")
    }
    assert by_reason == {"stop": 0, "length": 1, "abort": 1, "error": 0}
    # One token has no time between tokens.
    assert seen["request_time_per_output_token_seconds_count"] == 1


def test_a_plugins_own_reason_to_end_is_counted_beside_the_others(
    stat_logger: PrometheusStatLogger,
) -> None:
    ended = IterationStats(finished_requests=[FinishedRequestStats("out of time", "a")])
    stat_logger.record(None, ended)
    seen = samples(stat_logger)
    assert seen["request_success_total:out of time"] == 1
    assert seen["request_success_total:stop"] == 0
