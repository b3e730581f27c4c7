"""The engine's step from request to tokens, with a model whose right output is arithmetic."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

from fake_engine import (
    POISON,
    VOCAB,
    Collected,
    FakeModel,
    FakeWorker,
    RaisingModel,
    continuation,
    make_request,
)
from hookserve.engine.errors import ConfigError


def test_greedy_tokens_are_those_of_the_model(make_core, run_all):
    core = make_core()
    core.add_request(make_request("a", [5, 6, 7], max_tokens=9))
    collected = run_all(core)
    assert collected.tokens["a"] == continuation([5, 6, 7], 9)
    assert collected.last["a"].finish_reason == "length"


def test_neighbours_of_all_lengths_get_their_own_tokens(make_core, run_all):
    core = make_core(num_blocks=200, max_num_seqs=4, max_num_batched_tokens=16)
    prompts = {f"r{n}": [(n * 7 + i) % 90 for i in range(1 + 5 * n)] for n in range(12)}
    for name, prompt in prompts.items():
        core.add_request(make_request(name, prompt, max_tokens=10))
    collected = run_all(core)
    for name, prompt in prompts.items():
        assert collected.tokens[name] == continuation(prompt, 10), name
    assert core.scheduler.kv_cache.usage == 0.0


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks(make_core, run_all):
    core = make_core(max_num_batched_tokens=16)
    prompt = [i % 90 for i in range(100)]
    core.add_request(make_request("long", prompt, max_tokens=3))
    reports = [core.step() for _ in range(7)]
    assert [r.scheduler_stats.num_prompt_tokens for r in reports] == [16] * 6 + [4]
    assert [len(r.outputs) for r in reports] == [0] * 6 + [1]
    collected = Collected()
    collected.add(reports[-1].outputs)
    assert run_all(core, collected).tokens["long"] == continuation(prompt, 3)


def test_preempted_requests_are_computed_anew_and_end_right(make_core, run_all):
    # Four requests of 12 blocks each at their end, and room for 20 blocks.
    core = make_core(num_blocks=20, max_num_seqs=4, prefix_caching=False)
    for n in range(4):
        core.add_request(make_request(f"r{n}", [n, 1, 2, 3], max_tokens=44))
    collected = run_all(core)
    assert sum(output.num_preemptions for output in collected.last.values()) > 0
    for n in range(4):
        assert collected.tokens[f"r{n}"] == continuation([n, 1, 2, 3], 44)
    assert core.scheduler.kv_cache.usage == 0.0


def test_preemption_does_not_change_what_a_seed_gives(make_core, run_all):
    sampled = {}
    for num_blocks in (20, 200):
        core = make_core(num_blocks=num_blocks, max_num_seqs=4, prefix_caching=False)
        for n in range(4):
            core.add_request(
                make_request(f"r{n}", [n, 1, 2], max_tokens=44, temperature=1.5, seed=n)
            )
        collected = run_all(core)
        sampled[num_blocks] = collected.tokens
        preempted = sum(output.num_preemptions for output in collected.last.values())
        assert (preempted > 0) == (num_blocks == 20)
    assert sampled[20] == sampled[200]


def test_a_seed_gives_the_same_tokens_alone_and_among_neighbours(make_core, run_all):
    wanted = make_request("seeded", [1, 2, 3], max_tokens=20, temperature=2.0, seed=11)
    alone = make_core(max_num_seqs=16, num_blocks=256)
    alone.add_request(wanted)
    crowd = make_core(max_num_seqs=16, num_blocks=256)
    for n in range(15):
        if n == 8:
            crowd.add_request(wanted)
        crowd.add_request(make_request(f"n{n}", [n] * (n + 1), max_tokens=25, temperature=1.0))
    first, second = run_all(alone).tokens["seeded"], run_all(crowd).tokens["seeded"]
    assert first == second
    assert first != continuation([1, 2, 3], 20)
    other = make_core()
    other.add_request(make_request("s", [1, 2, 3], max_tokens=20, temperature=2.0, seed=12))
    assert run_all(other).tokens["s"] != first


def test_requests_without_a_seed_differ_from_each_other_and_repeat_with_the_engines(
    make_core, run_all
):
    def run(seed):
        core = make_core(seed=seed)
        for name in ("a", "b"):
            core.add_request(make_request(name, [1, 2], max_tokens=20, temperature=2.0))
        return run_all(core).tokens

    first = run(3)
    assert first["a"] != first["b"]
    assert run(3) == first
    assert run(4) != first


def test_logits_that_are_no_numbers_fail_that_request_alone(make_core, run_all):
    core = make_core()
    core.add_request(make_request("good", [1, 2, 3], max_tokens=12))
    core.add_request(make_request("bad", [1, POISON, 3], max_tokens=12))
    collected = run_all(core)
    assert collected.last["bad"].finish_reason == "error"
    assert "not finite" in collected.last["bad"].error
    assert collected.tokens["bad"] == []
    assert collected.tokens["good"] == continuation([1, 2, 3], 12)


def test_what_a_failed_request_computed_is_cleared_and_not_reused(make_core, run_all):
    core = make_core()
    prompt = [1, 2, 3, POISON, 5, 6, 7, 8, 9]
    core.add_request(make_request("bad", prompt))
    core.step()
    core.add_request(make_request("again", prompt))
    scheduled = core.scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"again": 9}
    assert len(scheduled.new_block_ids_to_zero) == 3
    core.executor.execute_model(scheduled)
    cache = core.executor.worker.runner.kv_caches["layer"]
    held = set(core.scheduler.requests["again"].block_ids)
    assert not cache[[b for b in scheduled.new_block_ids_to_zero if b not in held]].any()


def test_a_prompt_that_can_never_fit_is_refused_at_once_while_others_go_on(make_core, run_all):
    core = make_core(num_blocks=4, block_size=4, max_model_len=64)
    core.add_request(make_request("good", [1, 2, 3], max_tokens=5))
    core.add_request(make_request("huge", list(range(30))))
    report = core.step()
    refused = next(output for output in report.outputs if output.request_id == "huge")
    assert refused.finish_reason == "error"
    assert "30 tokens" in refused.error and "holds 16 tokens" in refused.error
    collected = Collected()
    collected.add(report.outputs)
    assert run_all(core, collected).tokens["good"] == continuation([1, 2, 3], 5)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ([], "no tokens"),
        ([1, VOCAB], f"Token id {VOCAB}"),
        ([-1, 2], "Token id -1"),
        ([2**40], "outside of the vocabulary"),
        ([1] * 128, "128 tokens"),
    ],
)
def test_prompts_that_cannot_be_computed_are_refused_by_name(make_core, prompt, named):
    core = make_core()
    core.add_request(make_request("x", prompt))
    assert not core.has_work()
    (output,) = core.report_idle().outputs
    assert output.finish_reason == "error"
    assert named in output.error


def test_the_context_ends_a_request_at_its_length(make_core, run_all):
    core = make_core(max_model_len=20)
    core.add_request(make_request("a", [1, 2, 3, 4], max_tokens=500))
    collected = run_all(core)
    assert collected.tokens["a"] == continuation([1, 2, 3, 4], 16)
    assert collected.last["a"].finish_reason == "length"


def test_a_cache_smaller_than_the_context_ends_a_request_where_it_is_full(make_core, run_all):
    core = make_core(num_blocks=4, block_size=4, max_model_len=64)
    core.add_request(make_request("a", [1, 2, 3, 4], max_tokens=500))
    collected = run_all(core)
    # 16 tokens fit, and the last one sampled needs no place.
    assert collected.tokens["a"] == continuation([1, 2, 3, 4], 13)
    assert collected.last["a"].finish_reason == "length"


def test_stops_by_token(make_core, run_all):
    tokens = continuation([1, 2, 3], 8)
    assert len(set(tokens)) == 8
    core = make_core()
    end = tokens[3]
    core.add_request(make_request("eos", [1, 2, 3], max_tokens=8, eos_token_ids=(end,)))
    core.add_request(
        make_request("ignored", [1, 2, 3], max_tokens=8, eos_token_ids=tokens[2:5], ignore_eos=True)
    )
    core.add_request(make_request("stop", [1, 2, 3], max_tokens=8, stop_token_ids=(tokens[5],)))
    collected = run_all(core)
    assert collected.tokens["eos"] == tokens[:4]
    assert (collected.last["eos"].finish_reason, collected.last["eos"].stop_reason) == (
        "stop",
        None,
    )
    assert collected.tokens["ignored"] == tokens
    assert collected.tokens["stop"] == tokens[:6]
    assert collected.last["stop"].stop_reason == tokens[5]


def test_an_abort_gives_the_blocks_back_before_the_next_step(make_core):
    core = make_core()
    core.add_request(make_request("a", [1] * 30, max_tokens=50))
    core.add_request(make_request("b", [2] * 30, max_tokens=50))
    core.step()
    assert core.step().scheduler_stats.kv_cache_usage == 16 / 64
    core.abort_requests(["a", "never seen"])
    assert core.step().scheduler_stats.kv_cache_usage == 8 / 64
    core.finish_request("b", "stop")
    assert not core.has_work()
    report = core.report_idle()
    assert report.outputs == []
    assert report.scheduler_stats.num_running_reqs == 0
    assert report.scheduler_stats.kv_cache_usage == 0.0
    assert core.report_idle() is None


def test_the_workers_forget_a_request_that_ended(make_core):
    core = make_core()
    core.add_request(make_request("a", [1, 2], max_tokens=50))
    core.step()
    runner = core.executor.worker.runner
    assert set(runner.requests) == {"a"}
    core.abort_requests(["a"])
    core.add_request(make_request("b", [1, 2], max_tokens=50))
    core.step()
    assert set(runner.requests) == {"b"}
    assert set(runner.input_batch.slots) == {"b"}


def test_the_warm_up_leaves_nothing_behind(make_core):
    core = make_core()
    core.warm_up()
    assert core.num_steps >= 2
    assert core.scheduler.kv_cache.usage == 0.0
    # The second of two equal prompts finds only what the first one cached.
    core.add_request(make_request("a", [1] * 64, max_tokens=1))
    (output,) = core.step().outputs
    assert output.num_cached_tokens == 0
    stats = core.scheduler.make_stats(core.num_steps)
    assert stats.num_generation_tokens == 0
    assert core.ready().num_gpu_blocks == 64


def test_a_warm_up_that_fails_is_told(make_core, monkeypatch, caplog):
    monkeypatch.setattr(
        FakeModel,
        "compute_logits",
        lambda self, hidden: torch.full((len(hidden), VOCAB), torch.nan),
    )
    monkeypatch.setattr(logging.getLogger("hookserve"), "propagate", True)
    make_core().warm_up()
    assert "The warm-up request failed: The model's logits" in caplog.text


def test_no_worker_is_left_of_a_start_that_fails(make_core, monkeypatch):
    from hookserve.engine.core import EngineCore
    from hookserve.engine.model_runner import ModelError

    def compute_logits(self, hidden):
        raise ValueError("no head")

    core, stopped = make_core(), []
    monkeypatch.setattr(FakeModel, "compute_logits", compute_logits)
    monkeypatch.setattr(FakeWorker, "shutdown", lambda self: stopped.append(self))
    with pytest.raises(ModelError, match="failed in a step: ValueError: no head"):
        EngineCore.start(core.vllm_config, core.host)
    assert len(stopped) == 1
    assert stopped[0] is not core.executor.worker


def test_what_the_model_raises_names_the_model(make_core):
    from hookserve.engine.model_runner import ModelError

    core = make_core()
    core.executor.worker.runner.model.__class__ = RaisingModel
    core.add_request(make_request("a", [89, 2]))
    with pytest.raises(
        ModelError, match=r"model RaisingModel failed in a step: ValueError: the third"
    ):
        core.step()


def test_a_model_that_exits_is_told_like_one_that_raises(make_core, monkeypatch):
    from hookserve.engine.model_runner import ModelError

    core = make_core()
    monkeypatch.setattr(FakeModel, "compute_logits", lambda self, hidden: sys.exit(5))
    core.add_request(make_request("a", [1, 2]))
    with pytest.raises(ModelError, match=r"model FakeModel failed in a step: SystemExit: 5"):
        core.step()


def test_workers_end_where_the_cache_cannot_be_made(make_core, monkeypatch):
    ended = []
    monkeypatch.setattr(FakeWorker, "shutdown", lambda self: ended.append(self.rank))
    with pytest.raises(ConfigError, match="--num-gpu-blocks-override 0"):
        make_core(num_blocks=0)
    assert ended == [0]


def test_the_estimate_of_a_step_grows_with_its_tokens(make_core):
    core = make_core()
    core.clock.record(1, 0.02)
    core.clock.record(64, 0.64)
    assert core.clock.estimate(64) == pytest.approx(0.66)
    core.clock.record(64, 0.06)  # one fast step is not believed at once
    assert core.clock.estimate(64) > 0.4


def test_workers_methods_are_called_by_name_and_private_ones_are_refused(make_core):
    core = make_core()
    assert core.collective_rpc("check_health", [], {}) == [True]
    with pytest.raises(AttributeError, match="_private"):
        core.collective_rpc("_private", [], {})


@pytest.mark.parametrize(
    ("method", "change", "told"),
    [
        ("forward", lambda made: made[:1], "forward gave 1 rows for 3 tokens"),
        ("forward", lambda made: None, "TypeError"),
        ("compute_logits", lambda made: None, "gave NoneType, expected (1, 97)"),
        ("compute_logits", lambda made: made.tolist(), "gave list, expected (1, 97)"),
        ("compute_logits", lambda made: made[0], "gave (97,), expected (1, 97)"),
        ("compute_logits", lambda made: made.repeat(2, 1), "gave (2, 97), expected (1, 97)"),
        ("compute_logits", lambda made: made.repeat(1, 2), "gave (1, 194), expected (1, 97)"),
        ("compute_logits", lambda made: made[:, :0], "gave (1, 0), expected (1, 97)"),
        ("compute_logits", lambda made: made.to("meta"), "gave logits on meta, not cpu"),
    ],
)
def test_what_a_model_must_not_give_is_told_as_the_models(
    make_core, monkeypatch, method, change, told
):
    from hookserve.engine.model_runner import ModelError

    core = make_core()
    right = getattr(FakeModel, method)
    monkeypatch.setattr(FakeModel, method, lambda *args, **named: change(right(*args, **named)))
    core.add_request(make_request("a", [90, 2, 3]))
    with pytest.raises(ModelError, match=r"^model FakeModel failed in a step: ") as caught:
        core.step()
    assert told in str(caught.value)


def test_an_emptied_prefix_cache_is_told_once_and_nothing_of_it_is_found(make_core, run_all):
    core = make_core()
    prompt = list(range(1, 17))

    def cached(name: str) -> tuple[int, bool]:
        core.add_request(make_request(name, prompt, max_tokens=1))
        report = core.step()
        assert report.outputs[0].new_token_ids == continuation(prompt, 1)
        return report.outputs[0].num_cached_tokens, report.scheduler_stats.prefix_cache_stats.reset

    assert cached("a") == (0, False)
    assert cached("b") == (12, False)
    assert core.reset_prefix_cache() is True
    assert cached("c") == (0, True)
    assert cached("d") == (12, False)
