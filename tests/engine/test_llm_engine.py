"""``LLM`` and ``LLMEngine`` over a model that is arithmetic: exact tokens, failures, statistics,
and the life of several in one process."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_engine import POISON, continuation
from hookserve.engine import LLM, EngineArgs, LLMEngine, RequestOutputKind, SamplingParams
from hookserve.engine.core import EngineCore
from hookserve.engine.errors import EngineDeadError, InvalidRequestError
from hookserve.engine.model_runner import ModelError
from hookserve.hookspecs import HostError, SettingsDifferError, current, hookimpl

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def tokens_of(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[list[int]]:
    return [each.outputs[0].token_ids for each in llm.generate(prompts, params)]


def is_idle(llm: LLM) -> bool:
    core = llm.llm_engine.core
    core.scheduler.check_integrity()
    return not core.has_work() and core.scheduler.kv_cache.usage == 0.0


def test_the_tokens_are_the_models(make_fake_llm: Callable[..., LLM]) -> None:
    llm = make_fake_llm()
    prompts = [[1, 2, 3], [4], [5, 6]]
    assert tokens_of(llm, prompts) == [continuation(prompt, 6) for prompt in prompts]


def test_max_tokens_beyond_the_context_ends_with_it(make_fake_llm: Callable[..., LLM]) -> None:
    llm = make_fake_llm(max_model_len=32)
    prompt = list(range(1, 21))
    for params in (
        SamplingParams(temperature=0, max_tokens=None, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=500, ignore_eos=True),
    ):
        assert tokens_of(llm, [prompt], params) == [continuation(prompt, 12)]


def test_a_request_that_fails_alone_says_so_and_others_go_on(
    make_fake_llm: Callable[..., LLM],
) -> None:
    llm = make_fake_llm()
    good, bad, other = llm.generate([[1, 2], [3, POISON], [4]], GREEDY)
    assert good.outputs[0].token_ids == continuation([1, 2], 6)
    assert other.outputs[0].token_ids == continuation([4], 6)
    assert (bad.finished, bad.outputs[0].finish_reason) == (True, "error")
    assert bad.outputs[0].error
    assert is_idle(llm)


def test_a_step_that_raises_is_told_and_ends_the_engine(make_fake_llm: Callable[..., LLM]) -> None:
    llm = make_fake_llm("RaisingWorker")
    with pytest.raises(ModelError, match="the third matrix is missing"):
        llm.generate([[1], [90]], GREEDY)
    with pytest.raises(EngineDeadError, match="third matrix"):
        llm.generate([[1]], GREEDY)


def test_an_interrupt_ends_the_batch_and_the_engine_stays_usable(
    make_fake_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_fake_llm()
    step = EngineCore.step
    steps = []

    def interrupted(core: EngineCore) -> Any:
        steps.append(None)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(core)

    monkeypatch.setattr(EngineCore, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1, 2], [3]], SamplingParams(temperature=0, max_tokens=50))
    assert len(steps) == 2
    assert is_idle(llm)
    assert llm.llm_engine.get_num_unfinished_requests() == 0
    assert tokens_of(llm, [[1, 2]]) == [continuation([1, 2], 6)]


def test_an_unknown_argument_has_the_nearest_one_named(tiny_llama: Path) -> None:
    with pytest.raises(TypeError, match="'max_model_length'; did you mean 'max_model_len'"):
        LLM(str(tiny_llama), max_model_length=3)
    with pytest.raises(HostError):
        current()


def test_step_by_step_with_an_abort(make_fake_llm: Callable[..., LLM]) -> None:
    engine = make_fake_llm().llm_engine
    delta = SamplingParams(
        temperature=0, max_tokens=4, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    whole = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    engine.add_request("a", [1, 2], delta)
    engine.add_request("b", [3], whole)
    engine.add_request("c", [5], whole)
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        engine.add_request("a", [9], whole)
    seen: dict[str, list[list[int]]] = {"a": [], "b": [], "c": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id].append(list(output.outputs[0].token_ids))
        engine.abort_request("c")
    assert seen["a"] == [[token] for token in continuation([1, 2], 4)]
    assert seen["b"] == [continuation([3], count) for count in (1, 2, 3, 4)]
    assert seen["c"] == [continuation([5], 1)]
    engine.add_request("a", [9], whole)  # the name is free again
    engine.abort_request(["a", "nobody"])
    assert not engine.has_unfinished_requests()


class Recorder:
    """A plugin with a stat logger; keeps what that is given."""

    def __init__(self) -> None:
        self.recorded: list[tuple[Any, Any]] = []
        self.logged = 0

    @hookimpl
    def stat_logger(self) -> Any:
        recorder = self

        class Logger:
            def __init__(self, config: Any, engine_index: int) -> None:
                pass

            def record(self, scheduler: Any, iteration: Any, mm: Any, engine_idx: int) -> None:
                recorder.recorded.append((scheduler, iteration))

            def log(self) -> None:
                recorder.logged += 1

            def log_engine_initialized(self) -> None:
                pass

        return [Logger]


def test_a_logger_is_fed_once_for_each_step_with_numbers_that_add_up(
    make_fake_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    llm = make_fake_llm(plugins=[recorder], disable_log_stats=False, log_stats_interval=0.0)
    step = EngineCore.step
    steps: list[Any] = []
    monkeypatch.setattr(EngineCore, "step", lambda core: steps.append(step(core)) or steps[-1])
    prompts = [[1, 2, 3], [4], list(range(1, 41))]
    outputs = llm.generate(prompts, [GREEDY, GREEDY, SamplingParams(n=2, max_tokens=3, seed=1)])
    reports = [report.scheduler_stats for report in steps]
    assert [scheduler for scheduler, _ in recorder.recorded] == reports
    assert recorder.logged == len(steps)
    details = [stats.iteration_details for stats in reports]
    assert [each.iteration_index for each in details] == [stats.step_counter for stats in reports]
    # Two sequences of one prompt read it once: the second finds its full blocks in the cache.
    iterations = [iteration for _, iteration in recorder.recorded if iteration is not None]
    assert sum(each.num_generation_tokens for each in iterations) == 6 + 6 + 3 + 3
    assert sum(each.num_prompt_tokens for each in iterations) == 3 + 1 + 40 + 40
    computed = sum(each.prompt_token_stats.computed for each in iterations)
    assert computed == sum(stats.num_prompt_tokens for stats in reports)
    cached = sum(each.prompt_token_stats.cached_tokens for each in iterations)
    assert cached == sum(stats.prefix_cache_stats.hits for stats in reports) == 84 - computed
    assert sum(stats.prefix_cache_stats.requests for stats in reports) == 4
    assert sum(stats.prefix_cache_stats.queries for stats in reports) == 84
    finished = [each for iteration in iterations for each in iteration.finished_requests]
    assert [each.finish_reason for each in finished] == ["length"] * 4
    assert sorted(n for each in iterations for n in each.n_params_iter) == [1, 1, 2]
    longest = [n for each in iterations for n in each.max_num_generation_tokens_iter]
    assert sorted(longest) == [3, 6, 6]
    metrics = outputs[0].metrics
    assert metrics.num_generation_tokens == 6
    assert metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts
    assert metrics.first_token_ts < metrics.last_token_ts
    assert metrics.first_token_latency == metrics.first_token_ts - metrics.queued_ts


def test_without_statistics_no_logger_is_made(make_fake_llm: Callable[..., LLM]) -> None:
    recorder = Recorder()
    llm = make_fake_llm(plugins=[recorder])
    assert tokens_of(llm, [[1]]) == [continuation([1], 6)]
    assert recorder.recorded == []


@pytest.mark.usefixtures("torch_threads")
def test_a_program_hands_over_loggers_of_its_own(tiny_llama: Path) -> None:
    kind = Recorder().stat_logger()[0]
    made: list[Any] = []

    def build(config: Any, engine_index: int) -> Any:
        made.append((config, engine_index))
        return kind(config, engine_index)

    args = EngineArgs(model=str(tiny_llama), num_gpu_blocks_override=64, disable_log_stats=False)
    engine = LLMEngine.from_engine_args(args, usage_context="LLM_CLASS", stat_loggers=[build])
    assert made == [(engine.vllm_config, 0)]
    engine.shutdown()


def test_a_second_one_lives_beside_the_first_if_its_plugins_are_the_same(
    make_fake_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    first = make_fake_llm()
    second = make_fake_llm(max_model_len=64)
    with pytest.raises(SettingsDifferError, match="plugin objects"):
        make_fake_llm(plugins=[Recorder()])
    plugin = tmp_path / "a_plugin.py"
    plugin.write_text("")
    with pytest.raises(SettingsDifferError, match="files"):
        make_fake_llm(plugins=[plugin])
    assert tokens_of(first, [[1]]) == tokens_of(second, [[1]]) == [continuation([1], 6)]
    first.shutdown()
    assert tokens_of(second, [[1]]) == [continuation([1], 6)]
    with pytest.raises(EngineDeadError, match="shut down"):
        first.generate([[1]])
    second.shutdown()
    with pytest.raises(HostError):
        current()


@pytest.mark.usefixtures("torch_threads")
def test_the_last_reference_ends_it(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), num_gpu_blocks_override=64)
    current()
    del llm
    gc.collect()
    with pytest.raises(HostError):
        current()


def test_shutdown_frees_the_cache_while_the_object_lives(
    make_fake_llm: Callable[..., LLM],
) -> None:
    llm = make_fake_llm()
    context = llm.llm_engine.vllm_config.compilation_config.static_forward_context
    cache = weakref.ref(context["layer"].kv_cache)
    assert cache() is not None
    llm.shutdown()
    gc.collect()
    assert cache() is None


def test_calls_of_several_threads_wait_for_one_another(make_fake_llm: Callable[..., LLM]) -> None:
    llm = make_fake_llm()
    prompts = [[at, at + 1] for at in range(1, 5)]
    answers: dict[int, list[list[int]]] = {}

    def ask(at: int) -> None:
        answers[at] = tokens_of(llm, [prompts[at]])

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {at: [continuation(prompt, 6)] for at, prompt in enumerate(prompts)}


def test_engine_arguments_need_no_host(tiny_llama: Path) -> None:
    config = EngineArgs(model=str(tiny_llama), max_model_len=100).to_engine_config()
    assert config.model.architectures == ("LlamaForCausalLM",)
    assert config.model.max_model_len == 100
    with pytest.raises(HostError):
        current()


def test_a_forked_process_neither_uses_nor_ends_it(
    make_fake_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none of the threads that compute, and what it would end is its parent's."""
    llm = make_fake_llm()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EngineDeadError, match=r"made in process \d+"):
            llm.generate([1], GREEDY)
        llm.llm_engine.shutdown()
    assert tokens_of(llm, [1]) == [continuation([1], 6)]


def test_a_shutdown_waits_for_the_step_of_another_thread(
    make_fake_llm: Callable[..., LLM],
) -> None:
    """The interpreter ends threads that it does not wait for; in tensor code that is an abort."""
    engine = make_fake_llm().llm_engine
    order: list[str] = []
    stop = engine.core.shutdown

    def step() -> None:
        ending.start()
        ending.join(0.2)  # long enough for a shutdown that does not wait
        order.append("step")

    def shutdown() -> None:
        order.append("shutdown")
        stop()

    engine.core.report_idle = step  # type: ignore[method-assign,assignment]
    engine.core.shutdown = shutdown  # type: ignore[method-assign]
    ending = threading.Thread(target=engine.shutdown)
    engine.step()
    ending.join()
    assert order == ["step", "shutdown"]
