"""The front's statistics, from steps of the engine with times given by hand."""

from __future__ import annotations

import pytest

from hookserve.engine.messages import EngineCoreOutput, SchedulerStats, StepOutputs
from hookserve.engine.stats import FrontStats, PromptTokenStats


def step(*outputs: EngineCoreOutput, preempted: int = 0) -> StepOutputs:
    return StepOutputs(1, list(outputs), SchedulerStats(num_preempted_reqs=preempted), 0.1)


@pytest.fixture
def stats():
    front = FrontStats()
    front.add_request("a", num_prompt_tokens=10, max_tokens=20, now=100.0)
    return front


def test_a_request_from_first_token_to_last(stats):
    first = stats.observe(
        step(EngineCoreOutput("a", [5], num_cached_tokens=4, queued_s=0.5), preempted=2), now=102.0
    )
    assert first.time_to_first_tokens_iter == [2.0]
    assert first.inter_token_latencies_iter == []
    assert first.num_generation_tokens == 1
    assert (first.prompt_token_stats.computed, first.prompt_token_stats.cached_tokens) == (6, 4)
    assert first.num_prompt_tokens == 10
    assert first.num_preempted_reqs == 2
    second = stats.observe(step(EngineCoreOutput("a", [6])), now=102.25)
    assert second.inter_token_latencies_iter == [0.25]
    assert second.num_prompt_tokens == 0
    last = stats.observe(
        step(EngineCoreOutput("a", [7], finish_reason="length", num_preemptions=1)), now=103.0
    )
    (finished,) = last.finished_requests
    assert finished.finish_reason == "length"
    assert (finished.num_prompt_tokens, finished.num_generation_tokens) == (10, 3)
    assert finished.max_tokens_param == 20
    assert finished.e2e_latency == 3.0
    assert finished.queued_time == 0.5
    assert finished.prefill_time == 1.5
    assert finished.decode_time == 1.0
    assert finished.inference_time == 2.5
    assert finished.mean_time_per_output_token == 0.5
    assert (finished.num_cached_tokens, finished.num_preemptions) == (4, 1)
    assert last.max_num_generation_tokens_iter == [3]
    assert last.n_params_iter == [1]
    assert len(stats) == 0


def test_an_end_in_front_is_reported_once_with_the_tokens_that_count(stats):
    stats.observe(step(EngineCoreOutput("a", [1])), now=101.0)
    assert stats.finish("a", "stop", num_generation_tokens=1, now=102.0).e2e_latency == 2.0
    assert stats.finish("a", "abort") is None
    # The engine had computed one more before it heard of the stop.
    after = stats.observe(step(EngineCoreOutput("a", [2], finish_reason="length")), now=103.0)
    assert after.num_generation_tokens == 0
    assert [f.num_generation_tokens for f in after.finished_requests] == [1]
    assert after.finished_requests[0].finish_reason == "stop"
    assert stats.observe(step(), now=104.0).finished_requests == []


def test_a_request_that_ends_before_its_first_token(stats):
    stats.finish("a", "abort", now=101.0)
    taken = stats.add_finished(None)
    (finished,) = taken.finished_requests
    assert finished.num_generation_tokens == 0
    assert finished.decode_time == finished.prefill_time == finished.inference_time == 0.0
    assert finished.mean_time_per_output_token == 0.0
    assert stats.add_finished(None) is None


def test_a_refusal_is_a_finish_without_tokens(stats):
    seen = stats.observe(
        step(EngineCoreOutput("a", finish_reason="error", error="It can never fit.")), now=100.5
    )
    assert seen.num_generation_tokens == 0
    assert [f.finish_reason for f in seen.finished_requests] == ["error"]


def test_outputs_of_strangers_count_nowhere(stats):
    seen = stats.observe(step(EngineCoreOutput("b", [1, 2], finish_reason="stop")), now=101.0)
    assert seen.num_generation_tokens == 0
    assert seen.finished_requests == []
    assert len(stats) == 1


def test_prompt_tokens_by_source():
    tokens = PromptTokenStats(computed=3, local_cache_hit=2)
    assert {s: tokens.get_by_source(s) for s in tokens.ALL_SOURCES} == {
        "local_compute": 3,
        "local_cache_hit": 2,
        "external_kv_transfer": 0,
    }
    assert tokens.total == 5
    with pytest.raises(ValueError, match="disk"):
        tokens.get_by_source("disk")
