"""What a step computes: budgets, order, admission, preemption, and the books under any order of
events."""

from __future__ import annotations

import time

import pytest

from fake_engine import make_config, make_request
from hookserve.engine.errors import ConfigError
from hookserve.engine.request import Request
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.step import ModelRunnerOutput, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig


@pytest.fixture
def make_scheduler():
    def make(cls: type[Scheduler] = Scheduler, **options: object) -> Scheduler:
        config = make_config(**options)
        return cls(
            VllmConfig.from_engine_config(config),
            config.cache.num_gpu_blocks_override,
            config.cache.block_size,
        )

    return make


def add(scheduler: Scheduler, name: str, length: int, first: int = 0, **params: object) -> Request:
    """A request with a prompt of its own."""
    prompt = [(first + i) % 90 for i in range(length)]
    request = Request(make_request(name, prompt, **params), time.monotonic())
    assert scheduler.add_request(request) is None
    return request


def compute(scheduler: Scheduler, output: SchedulerOutput, token: int = 1) -> list:
    """What a runner would answer: a token wherever the end of the known tokens is reached."""
    req_ids = list(output.num_scheduled_tokens)
    tokens = [[token] if scheduler.requests[r].num_uncomputed_tokens == 0 else [] for r in req_ids]
    outputs = scheduler.update_from_output(output, ModelRunnerOutput(req_ids, tokens))
    scheduler.check_integrity()
    return outputs


def step(scheduler: Scheduler) -> dict[str, int]:
    output = scheduler.schedule()
    compute(scheduler, output)
    return output.num_scheduled_tokens


def test_decoding_requests_come_first_and_prompts_share_what_is_left(make_scheduler):
    scheduler = make_scheduler(max_num_batched_tokens=20)
    add(scheduler, "a", 5, max_tokens=30)
    add(scheduler, "b", 6, 20, max_tokens=30)
    assert step(scheduler) == {"a": 5, "b": 6}
    add(scheduler, "c", 40, 40)
    assert list(step(scheduler).items()) == [("a", 1), ("b", 1), ("c", 18)]
    assert step(scheduler) == {"a": 1, "b": 1, "c": 18}
    assert step(scheduler) == {"a": 1, "b": 1, "c": 4}
    assert step(scheduler) == {"a": 1, "b": 1, "c": 1}


def test_prompt_tokens_beside_decoding_requests_are_limited(make_scheduler):
    scheduler = make_scheduler(max_num_batched_tokens=120, num_blocks=200)
    scheduler.shared_prompt_tokens = 32
    add(scheduler, "a", 5, max_tokens=30)
    step(scheduler)
    add(scheduler, "b", 100, 20)
    assert step(scheduler) == {"a": 1, "b": 32}
    scheduler.finish_requests("a", "abort")
    assert step(scheduler) == {"b": 68}


def test_prompts_that_wait_for_one_another_share_small_steps(make_scheduler):
    scheduler = make_scheduler(max_num_batched_tokens=120, num_blocks=200)
    scheduler.shared_prompt_tokens = 32
    add(scheduler, "a", 100)
    add(scheduler, "b", 10, 20)
    assert step(scheduler) == {"a": 22, "b": 10}, "the short one has its first token at once"
    scheduler.finish_requests("b", "abort")
    assert step(scheduler) == {"a": 78}, "alone it has the whole step"


def test_a_short_prompt_passes_a_long_one_that_still_moves(make_scheduler):
    scheduler = make_scheduler(max_num_batched_tokens=20, num_blocks=200)
    add(scheduler, "long", 100)
    assert step(scheduler) == {"long": 20}
    add(scheduler, "short", 6, 50)
    add(scheduler, "middle", 12, 70)
    assert step(scheduler) == {"long": 10, "short": 6, "middle": 4}
    # "short" decodes now; the long prompt has half of what is left.
    assert step(scheduler) == {"short": 1, "long": 11, "middle": 8}


def test_a_long_prompt_is_not_passed_for_ever_by_short_ones_that_keep_coming(make_scheduler):
    scheduler = make_scheduler(max_num_batched_tokens=20, num_blocks=200, prefix_caching=False)
    add(scheduler, "first", 31, max_tokens=1)
    step(scheduler)
    long = add(scheduler, "long", 60, 30, max_tokens=1)
    for n in range(20):  # there is always a prompt under way that is shorter than "long"
        for half in range(2):
            add(scheduler, f"short-{n}-{half}", 15, n, max_tokens=1)
        step(scheduler)
    assert long.is_finished() and long.get_finished_reason() == "length"


def test_what_others_leave_goes_back_to_the_oldest(make_scheduler):
    scheduler = make_scheduler(max_num_batched_tokens=20, num_blocks=200)
    add(scheduler, "long", 100)
    add(scheduler, "short", 3, 50)
    assert step(scheduler) == {"long": 17, "short": 3}


def test_no_more_requests_run_than_may(make_scheduler):
    scheduler = make_scheduler(max_num_seqs=2)
    for n in range(3):
        add(scheduler, f"r{n}", 4, 10 * n, max_tokens=2)
    assert step(scheduler) == {"r0": 4, "r1": 4}
    stats = scheduler.make_stats(1)
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (2, 1)
    assert step(scheduler) == {"r0": 1, "r1": 1}
    assert step(scheduler) == {"r2": 4}


def test_who_came_first_is_not_passed_when_blocks_are_short(make_scheduler):
    scheduler = make_scheduler(num_blocks=8, block_size=4, max_num_batched_tokens=64)
    add(scheduler, "running", 20, max_tokens=4)
    step(scheduler)
    add(scheduler, "large", 24, 30)
    add(scheduler, "small", 2, 60)
    assert step(scheduler) == {"running": 1}
    scheduler.finish_requests("running", "stop")
    assert next(iter(step(scheduler))) == "large"


def test_a_subclass_may_say_as_a_list_who_waits(make_scheduler):
    class LastFirst(Scheduler):
        def _waiting_in_order(self):
            return list(super()._waiting_in_order())[::-1]

    scheduler = make_scheduler(LastFirst, max_num_seqs=1)
    add(scheduler, "a", 4)
    add(scheduler, "b", 4, 20)
    assert step(scheduler) == {"b": 4}


def test_a_request_waits_until_all_blocks_of_its_prompt_are_free(make_scheduler):
    scheduler = make_scheduler(num_blocks=8, block_size=4, max_num_batched_tokens=8)
    add(scheduler, "a", 16, max_tokens=1)
    add(scheduler, "b", 17, 40, max_tokens=1)
    assert step(scheduler) == {"a": 8}
    assert step(scheduler) == {"a": 8}
    assert step(scheduler) == {"b": 8}


def test_the_request_admitted_last_is_preempted_and_comes_back_first(make_scheduler):
    scheduler = make_scheduler(num_blocks=5, block_size=4, prefix_caching=False)
    add(scheduler, "a", 8, max_tokens=20)
    add(scheduler, "b", 4, 40, max_tokens=20)
    assert step(scheduler) == {"a": 8, "b": 4}
    add(scheduler, "c", 4, 60)
    step(scheduler)  # both take a fresh block: none is left
    for _ in range(3):
        step(scheduler)
    output = scheduler.schedule()
    assert output.preempted_req_ids == {"b"}
    assert output.num_scheduled_tokens == {"a": 1}
    compute(scheduler, output)
    assert [request.request_id for request in scheduler.waiting] == ["b", "c"]
    assert scheduler.make_stats(1).num_preempted_reqs == 1
    scheduler.finish_requests("a", "stop")
    output = scheduler.schedule()
    # All of its tokens at once, prompt and output, told to the workers as resumed.
    assert output.num_scheduled_tokens == {"b": 9, "c": 4}
    assert output.scheduled_cached_reqs.resumed_req_ids == {"b"}
    assert len(output.scheduled_cached_reqs.all_token_ids["b"]) == 9
    (told,) = compute(scheduler, output)[:1]
    assert told.num_preemptions == 1


def test_a_cached_prefix_is_not_computed_again(make_scheduler):
    scheduler = make_scheduler(num_blocks=200)
    add(scheduler, "a", 40, max_tokens=1)
    step(scheduler)
    add(scheduler, "b", 40, max_tokens=1)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"b": 4}
    assert output.scheduled_new_reqs[0].num_computed_tokens == 36
    (told,) = compute(scheduler, output)
    assert told.num_cached_tokens == 36
    assert told.queued_s >= 0
    stats = scheduler.make_stats(2)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (80, 36)
    assert stats.num_prompt_tokens == 44
    assert scheduler.make_stats(2).num_prompt_tokens == 0


def test_requests_of_one_step_share_their_prefix(make_scheduler):
    scheduler = make_scheduler(num_blocks=200)
    for n in range(3):
        add(scheduler, f"r{n}", 18, max_tokens=1)
    assert step(scheduler) == {"r0": 18, "r1": 2, "r2": 2}


def test_a_prefix_in_the_making_is_waited_for(make_scheduler):
    scheduler = make_scheduler(num_blocks=200, max_num_batched_tokens=16)
    for n in range(3):
        add(scheduler, f"r{n}", 30 - n, max_tokens=9)
    assert step(scheduler) == {"r0": 16}
    # Of the others only what comes after the blocks that they share is computed.
    assert step(scheduler) == {"r0": 11, "r2": 4, "r1": 1}
    assert step(scheduler) == {"r2": 1, "r1": 1, "r0": 3}


def test_output_is_cached_too(make_scheduler):
    scheduler = make_scheduler(num_blocks=200)
    first = add(scheduler, "a", 6, max_tokens=7)
    while scheduler.has_unfinished_requests():
        step(scheduler)
    follow_up = [*first.token_ids, 9, 9]
    request = Request(make_request("b", follow_up), 0.0)
    scheduler.add_request(request)
    assert step(scheduler) == {"b": len(follow_up) - 12}


def test_an_end_from_outside_for_a_request_that_is_gone_is_no_error(make_scheduler):
    scheduler = make_scheduler()
    add(scheduler, "a", 4, max_tokens=1)
    output = scheduler.schedule()
    scheduler.finish_requests(["a"], "abort")
    assert scheduler.finish_requests(["a", "b"], "abort") == []
    late = ModelRunnerOutput(["a"], [[5]])
    assert scheduler.update_from_output(output, late) == []
    assert scheduler.schedule().finished_req_ids == {"a"}


def test_a_token_of_an_ended_request_is_not_given_to_a_new_one_of_its_id(make_scheduler):
    scheduler = make_scheduler()
    add(scheduler, "a", 4, max_tokens=9)
    output = scheduler.schedule()
    scheduler.finish_requests(["a"], "abort")
    again = add(scheduler, "a", 6, 40, max_tokens=9)
    assert scheduler.update_from_output(output, ModelRunnerOutput(["a"], [[5]])) == []
    assert again.num_output_tokens == 0
    output = scheduler.schedule()
    # The workers forget the first one in the step that begins the second.
    assert output.finished_req_ids == {"a"}
    assert [new.req_id for new in output.scheduled_new_reqs] == ["a"]
    compute(scheduler, output)


def test_a_second_request_with_the_same_id_is_refused(make_scheduler):
    scheduler = make_scheduler()
    add(scheduler, "a", 4)
    refusal = scheduler.add_request(Request(make_request("a", [1]), 0.0))
    assert refusal.finish_reason == "error"
    assert "in use" in refusal.error
    assert scheduler.get_num_unfinished_requests() == 1


def test_a_budget_below_the_number_of_sequences_is_refused(make_scheduler):
    with pytest.raises(ConfigError, match="max_num_batched_tokens 4 is less than max_num_seqs 8"):
        make_scheduler(max_num_batched_tokens=4, max_num_seqs=8)


def test_seams_are_found_through_the_class(make_scheduler):
    class LastFirst(Scheduler):
        def _select_victim(self) -> Request:
            return self.running[0]

    scheduler = make_scheduler(LastFirst, num_blocks=5, block_size=4, prefix_caching=False)
    add(scheduler, "a", 8, max_tokens=20)
    add(scheduler, "b", 4, 40, max_tokens=20)
    preempted: set[str] = set()
    for _ in range(6):
        output = scheduler.schedule()
        preempted |= output.preempted_req_ids
        compute(scheduler, output)
    assert preempted == {"a"}
