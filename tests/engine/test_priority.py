"""Who runs and who is put back where requests have priorities, and that by arrival they mean
nothing."""

from __future__ import annotations

import time

import pytest

from fake_engine import continuation, make_config, make_request
from hookserve.engine.errors import ConfigError
from hookserve.engine.request import Request
from hookserve.engine.request_queue import FCFSQueue, PriorityQueue
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.step import ModelRunnerOutput, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig


def make_scheduler(policy: str = "priority", **options: object) -> Scheduler:
    config = make_config(policy=policy, prefix_caching=False, **options)
    return Scheduler(
        VllmConfig.from_engine_config(config),
        config.cache.num_gpu_blocks_override,
        config.cache.block_size,
    )


def add(scheduler: Scheduler, name: str, length: int, priority: int, max_tokens: int = 30) -> None:
    message = make_request(name, list(range(length)), max_tokens=max_tokens, priority=priority)
    assert scheduler.add_request(Request(message, time.monotonic())) is None


def step(scheduler: Scheduler) -> SchedulerOutput:
    output = scheduler.schedule()
    req_ids = list(output.num_scheduled_tokens)
    tokens = [[1] if scheduler.requests[r].num_uncomputed_tokens == 0 else [] for r in req_ids]
    scheduler.update_from_output(output, ModelRunnerOutput(req_ids, tokens))
    scheduler.check_integrity()
    return output


def names(requests: object) -> list[str]:
    return [request.request_id for request in requests]


def queued(queue: FCFSQueue | PriorityQueue) -> list[str]:
    for at, (name, priority) in enumerate([("a", 5), ("b", 0), ("c", 5), ("d", -1), ("e", 0)]):
        queue.add(Request(make_request(name, [1], priority=priority), float(at)))
    return names(queue)


def test_the_queue_is_ordered_by_priority_then_arrival():
    queue = PriorityQueue()
    assert queued(queue) == ["d", "b", "e", "a", "c"]
    first = queue[0]
    queue.remove(first)
    assert names(queue) == ["b", "e", "a", "c"]
    queue.put_back(first)
    queue.put_back(Request(make_request("early", [1], priority=5), -1.0))
    assert names(queue) == ["d", "b", "e", "early", "a", "c"]


def test_by_arrival_priorities_change_nothing():
    queue = FCFSQueue()
    assert queued(queue) == ["a", "b", "c", "d", "e"]
    queue.put_back(Request(make_request("back", [1], priority=9), 9.0))
    assert names(queue)[0] == "back"
    scheduler = make_scheduler("fcfs", max_num_seqs=1)
    add(scheduler, "late", 4, 9, max_tokens=3)
    step(scheduler)
    add(scheduler, "urgent", 4, 0)
    assert list(step(scheduler).num_scheduled_tokens) == ["late"]
    assert names(scheduler.waiting) == ["urgent"]


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="'lifo': expected one of fcfs, priority"):
        make_scheduler("lifo")


def test_waiting_requests_start_in_the_order_of_their_priority():
    scheduler = make_scheduler(max_num_seqs=2, max_num_batched_tokens=64)
    for name, priority in [("a", 2), ("b", 1), ("c", 0), ("d", 1)]:
        add(scheduler, name, 4, priority, max_tokens=1)
    assert set(step(scheduler).num_scheduled_tokens) == {"c", "b"}
    assert set(step(scheduler).num_scheduled_tokens) == {"d", "a"}


def test_the_prompt_budget_goes_to_the_higher_priority_first():
    scheduler = make_scheduler(max_num_batched_tokens=20, num_blocks=200)
    add(scheduler, "long", 60, 0)
    add(scheduler, "short", 5, 1)
    add(scheduler, "middle", 12, 0)
    # Half is the first's of the highest priority; what is left goes by priority, then by length.
    assert step(scheduler).num_scheduled_tokens == {"long": 10, "middle": 10}
    assert step(scheduler).num_scheduled_tokens == {"long": 13, "middle": 2, "short": 5}


def test_under_pressure_the_lowest_priority_goes_and_of_those_the_latest():
    scheduler = make_scheduler(num_blocks=9, block_size=4, max_num_seqs=3)
    add(scheduler, "low-early", 7, 5)
    add(scheduler, "low-late", 7, 5)
    step(scheduler)
    add(scheduler, "high", 7, 1)
    preempted: list[str] = []
    while len(preempted) < 2:
        preempted += sorted(step(scheduler).preempted_req_ids)
    # Not the one that was admitted last: that is "high".
    assert preempted == ["low-late", "low-early"]
    assert names(scheduler.running) == ["high"]
    assert names(scheduler.waiting) == ["low-early", "low-late"]


def test_a_waiting_request_takes_the_place_of_a_lower_one():
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, "low", 4, 5)
    add(scheduler, "lower", 4, 7)
    step(scheduler)
    add(scheduler, "equal", 4, 7)
    assert step(scheduler).preempted_req_ids == set()
    add(scheduler, "high", 4, 1)
    output = step(scheduler)
    assert output.preempted_req_ids == {"lower"}
    assert set(output.num_scheduled_tokens) == {"low", "high"}
    assert names(scheduler.waiting) == ["lower", "equal"]


def test_a_waiting_request_takes_the_blocks_of_lower_ones_if_they_are_enough():
    scheduler = make_scheduler(num_blocks=12, block_size=4, max_num_batched_tokens=64)
    add(scheduler, "same", 16, 1)
    add(scheduler, "low", 8, 5)
    add(scheduler, "lower", 8, 6)
    step(scheduler)
    add(scheduler, "huge", 29, 1, max_tokens=2)
    # With the lower ones' blocks eight are free: enough for it, and none for "same" to grow.
    assert step(scheduler).preempted_req_ids == set()
    scheduler.finish_requests("huge", "abort")
    add(scheduler, "big", 8, 1, max_tokens=2)
    output = step(scheduler)
    # 12 - 5 - 3 - 3 are free. The last one's three make it four: two for the prompt, and one to
    # grow for each that runs. So no more are taken.
    assert output.preempted_req_ids == {"lower"}
    assert output.num_scheduled_tokens["big"] == 8


def test_preempted_for_priority_a_request_still_says_what_it_says_alone(make_core):
    core = make_core(policy="priority", max_num_seqs=2, num_blocks=16, max_num_batched_tokens=16)
    said: dict[str, list[int]] = {}
    prompts = {f"r{n}": [(n * 13 + at) % 90 for at in range(6 + n)] for n in range(9)}
    preemptions = 0
    for n, (name, prompt) in enumerate(prompts.items()):
        # Each is more urgent than those before it.
        core.add_request(make_request(name, prompt, max_tokens=9, priority=-n))
        for _ in range(3):
            report = core.step()
            preemptions += report.scheduler_stats.num_preempted_reqs
            for output in report.outputs:
                said.setdefault(output.request_id, []).extend(output.new_token_ids)
    while core.has_work():
        for output in core.step().outputs:
            said.setdefault(output.request_id, []).extend(output.new_token_ids)
        core.scheduler.check_integrity()
    assert preemptions > 3
    assert said == {name: continuation(prompt, 9) for name, prompt in prompts.items()}


def test_a_prompt_that_is_preempted_half_computed_is_counted_once():
    scheduler = make_scheduler(num_blocks=12, max_num_batched_tokens=16)
    add(scheduler, "late", 40, priority=1, max_tokens=2)
    step(scheduler)
    assert scheduler.requests["late"].num_computed_tokens == 16
    add(scheduler, "first", 20, priority=0, max_tokens=2)
    while scheduler.requests:
        step(scheduler)
    stats = scheduler.make_stats(0)
    assert stats.num_preempted_reqs == 1
    assert stats.num_prompt_tokens == 40 + 20
