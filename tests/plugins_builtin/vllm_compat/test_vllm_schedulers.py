"""Schedulers in vLLM's form: found by their class path, driven by the engine, and what they see."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fake_engine import Collected, continuation, make_config, make_request
from hookserve.engine.core import EngineCore
from hookserve.engine.request import Request, RequestStatus
from hookserve.engine.scheduler import Scheduler as EngineScheduler
from hookserve.engine.scheduler_guard import SchedulerError
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginError, PluginSettings, bootstrap

Make = Callable[..., EngineCore]
PROMPTS = {f"r{n}": [(n * 7 + i) % 88 for i in range(1 + 9 * n)] for n in range(6)}
OBSERVER = """
from hookserve.hookspecs import hookimpl

asked = []

@hookimpl
def order_waiting(queue):
    asked.append(len(queue))
"""


@pytest.fixture
def make(tmp_path: Any, vllm_facade: None) -> Iterator[Make]:
    """``make(scheduler, **make_config's arguments)``: a core over the fake model, with a plugin
    that orders who waits."""
    threads = torch.get_num_threads()
    (tmp_path / "observer.py").write_text(OBSERVER)
    settings = PluginSettings(files=(str(tmp_path / "observer.py"),), allow=())
    host = bootstrap({"engine", "worker"}, settings)

    def start(name: str, **options: Any) -> EngineCore:
        config = make_config(**options)
        section = msgspec.structs.replace(config.scheduler, scheduler_cls=name)
        config = msgspec.structs.replace(config, scheduler=section)
        core = EngineCore(VllmConfig.from_engine_config(config), host)
        torch.set_num_threads(1)
        return core

    yield start
    host.close()
    for name in ("observer", "vllm_schedulers"):
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


def driven(core: EngineCore) -> Any:
    """The plugin's object behind what the engine drives."""
    return core.scheduler.scheduler  # type: ignore[attr-defined]


def serve(core: EngineCore, max_tokens: int = 9, **prompts: list[int]) -> Collected:
    for name, prompt in prompts.items():
        core.add_request(make_request(name, prompt, max_tokens=max_tokens))
    collected = Collected()
    while core.has_work():
        collected.add(core.step().outputs)
    core.check_integrity()
    return collected


@pytest.mark.checklist(126, 129, 133)
@pytest.mark.parametrize("path", ["vllm_schedulers.Watching", "vllm_schedulers:Watching"])
def test_parts_that_a_subclass_replaces_are_called_in_vllms_form(path: str, make: Make) -> None:
    core = make(path)
    core.warm_up()
    scheduler = driven(core)
    collected = serve(core, **PROMPTS)
    for name, prompt in PROMPTS.items():
        assert collected.tokens[name] == scheduler.told[name] == continuation(prompt, 9), name
    assert scheduler.added == ["warm-up", *PROMPTS]
    assert all(scheduler.reasons.values()) and scheduler.reasons.keys() == {"warm-up", *PROMPTS}
    assert max(sys.modules["observer"].asked) >= 2
    assert {output.stop_reason for output in collected.last.values()} == {77}
    core.shutdown()


def test_refusals_and_aborts_reach_and_leave_it(make: Make) -> None:
    core = make("vllm_schedulers:Watching")
    core.add_request(make_request("empty", []))
    core.add_request(make_request("long", [1, 2], max_tokens=50))
    core.add_request(make_request("other", [1, 2], max_tokens=50))
    report = core.step()
    refused = [each.error for each in report.outputs if each.is_refusal]
    assert refused == ["The prompt has no tokens."]
    assert driven(core).requests["long"].mark == "50"
    core.abort_requests(["long", "nobody"])
    core.finish_request("other", "stop")
    assert driven(core).ended == [
        ("long", RequestStatus.FINISHED_ABORTED),
        ("other", RequestStatus.FINISHED_STOPPED),
    ]
    assert not core.has_work()


def test_one_may_hold_requests_back_and_refuse_them_later(make: Make) -> None:
    core = make("vllm_schedulers:Holding")
    core.add_request(make_request("empty", []))
    core.add_request(make_request("good", [4, 5], max_tokens=9))
    outputs = serve(core)
    assert outputs.tokens["good"] == continuation([4, 5], 9)
    assert outputs.last["empty"].error == "The prompt has no tokens."


def test_statistics_tell_the_step_and_what_it_computed(make: Make) -> None:
    core = make("vllm_schedulers.Watching")
    core.add_request(make_request("a", [1, 2, 3], max_tokens=5))
    stats = core.step().scheduler_stats
    # The plugin adds a thousand, and gives a reason of its own.
    assert (stats.step_counter, stats.num_running_reqs, stats.num_waiting_reqs) == (1, 1001, 0)
    assert stats.iteration_details is not None
    assert stats.iteration_details.num_ctx_tokens == stats.num_prompt_tokens == 3
    assert stats.iteration_details.elapsed_ms > 0.0
    with pytest.raises(ValueError, match="running requests keep their blocks"):
        driven(core).reset_prefix_cache(reset_running_requests=True)
    with pytest.raises(ValueError, match="RUNNING: 5> is no finished status"):
        driven(core).finish_requests(None, RequestStatus.RUNNING)
    assert [each.request_id for each in driven(core).finish_requests(
        None, RequestStatus.FINISHED_ERROR)] == ["a"]  # fmt: skip


@pytest.mark.parametrize("done", [True, False])
def test_whether_the_prefix_cache_is_emptied_is_what_it_says(
    make: Make, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make("vllm_schedulers.Watching")
    monkeypatch.setattr(driven(core), "reset_prefix_cache", lambda: done)
    assert core.reset_prefix_cache() is done
    report = core.report_idle()
    assert (report is not None) is done
    assert report is None or report.scheduler_stats.prefix_cache_stats.reset


def test_one_of_an_older_form_is_built_with_the_arguments_that_it_takes(make: Make) -> None:
    core = make("vllm_schedulers.ByName")
    assert driven(core).was_given == (None, True)
    assert serve(core, a=[4, 5]).tokens["a"] == continuation([4, 5], 9)


def test_the_queue_has_vllms_methods(make: Make) -> None:
    core = make("vllm_schedulers.LongestFirst", max_num_seqs=1)
    first = serve(core, 2, short=[1], long=[1, 2, 3], middle=[1, 2])
    assert list(first.tokens) == ["long", "middle", "short"]


def test_prompts_can_be_left_for_later(make: Make) -> None:
    core = make("vllm_schedulers.Watching")
    core.add_request(make_request("decodes", [1, 2], max_tokens=9))
    core.step()
    core.add_request(make_request("waits", [1, 2, 3], max_tokens=9))
    assert driven(core).schedule(throttle_prefills=True).num_scheduled_tokens == {"decodes": 1}


def test_an_answer_of_no_known_form_ends_the_engine_under_its_name(make: Make) -> None:
    core = make("vllm_schedulers.Forgetful")
    said = "update_from_output raised TypeError: a list; expected a dict with the EngineCoreOut"
    with pytest.raises(SchedulerError, match=f"'vllm_schedulers.Forgetful': {said}"):
        serve(core, a=[1])


def test_one_that_is_written_anew_is_driven_too(make: Make) -> None:
    core = make("vllm_schedulers.Own")
    assert sys.modules["vllm_schedulers"].Own.made == [(64, 4)]
    assert core.ready().num_gpu_blocks == 64 and not core.has_work()
    assert core.step().scheduler_stats.num_running_reqs == 0


def test_a_class_that_is_no_scheduler_is_refused(make: Make) -> None:
    with pytest.raises(PluginError, match="SchedulerOutput lacks add_request, finish_requests"):
        make("vllm_schedulers:SchedulerOutput")


@pytest.mark.checklist(135)
def test_the_choice_of_a_scheduler_is_told_to_be_unstable(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        make("default")
        assert not caplog.messages
        make("vllm_schedulers.Watching")
    (said,) = [each for each in caplog.messages if "stable" in each]
    assert said.startswith("scheduler 'vllm_schedulers.Watching': a scheduler's interface is not ")


def test_a_part_that_a_plugin_patches_acts_without_any_flag(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    whole = Scheduler.schedule
    calls = []

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self).__name__)
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    with caplog.at_level(logging.WARNING):
        core = make("default")
    assert not caplog.messages
    assert serve(core, a=[4, 5]).tokens["a"] == continuation([4, 5], 9)
    assert calls == ["Scheduler"] * core.num_steps
    monkeypatch.setattr(Scheduler, "schedule", lambda self: plan)
    plan = whole(driven(core))
    plan.total_num_scheduled_tokens = 3
    with pytest.raises(SchedulerError, match="a total of 3 tokens; its requests have 0"):
        core.step()


def test_the_engines_own_is_taken_where_nobody_imported_another_form(make: Make) -> None:
    assert type(make("default").scheduler) is EngineScheduler


@pytest.mark.usefixtures("vllm_facade")
def test_an_offline_engine_takes_the_class_itself_and_lets_its_exception_out(
    tiny_llama: Path,
) -> None:
    """The engine is in this process, whatever ``VLLM_ENABLE_V1_MULTIPROCESSING`` says. Its first
    request is the warm-up's, so a scheduler that always raises stops the start."""
    from vllm import LLM, SamplingParams

    import vllm_schedulers

    threads = torch.get_num_threads()
    settings = {"num_gpu_blocks_override": 64, "max_num_batched_tokens": 64}
    try:
        with LLM(str(tiny_llama), **settings) as plain:
            params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
            (expected,) = plain.generate([[5, 6, 7]], params)
        with LLM(str(tiny_llama), scheduler_cls=vllm_schedulers.Watching, **settings) as llm:
            (output,) = llm.generate([[5, 6, 7]], params)
            assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        said = "scheduler 'vllm_schedulers:Raising': schedule raised ValueError: the third queue"
        with pytest.raises(SchedulerError, match=said) as caught:
            LLM(str(tiny_llama), scheduler_cls=vllm_schedulers.Raising, **settings)
        assert type(caught.value.__cause__) is ValueError
    finally:
        torch.set_num_threads(threads)
        del sys.modules["vllm_schedulers"]


def test_a_request_answers_by_vllms_names() -> None:
    request = Request(make_request("a", [7, 8, 9], max_tokens=4), 0.0)
    request.append_token(5)
    assert request.prompt_token_ids == [7, 8, 9] and request.output_token_ids == [5]
    assert list(request.all_token_ids) == [7, 8, 9, 5]
    assert (request.num_tokens, request.num_tokens_with_spec, request.max_tokens) == (4, 4, 4)
    assert not request.is_finished() and request.get_finished_reason() is None
    request.status = RequestStatus.FINISHED_ABORTED
    assert request.is_finished() and request.get_finished_reason() == "abort"
    assert Request(make_request("b", [1], priority=-1), 1.0) < request
