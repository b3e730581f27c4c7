"""The scheduler that an operator names: found, refused by name where it cannot be driven, told what
it does without, and held responsible for what it does while the engine runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch

import schedulers
from fake_engine import Collected, continuation, make_config, make_request
from hookserve.engine import scheduler_guard
from hookserve.engine.core import EngineCore
from hookserve.engine.errors import ConfigError
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.scheduler_class import capabilities_of
from hookserve.engine.scheduler_guard import SchedulerError
from hookserve.engine.scheduler_interface import CAPABILITIES
from hookserve.engine.step import CachedRequestData, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginError, PluginSettings, UnknownNameError, bootstrap

Make = Callable[..., EngineCore]
PROMPTS = {f"r{n}": [(n * 7 + i) % 88 for i in range(1 + 9 * n)] for n in range(6)}
OBSERVER = """
from hookserve.hookspecs import hookimpl

@hookimpl
def order_waiting(queue): return None

@hookimpl
def select_victim(running): return None
"""


@pytest.fixture
def make(tmp_path: Any) -> Iterator[Make]:
    """``make(scheduler, **make_config's arguments)``: a core over the fake model, with the plugin
    ``schedulers`` and one that has hooks of schedulers."""
    threads = torch.get_num_threads()
    (tmp_path / "observer.py").write_text(OBSERVER)
    files = ("schedulers", str(tmp_path / "observer.py"))
    host = bootstrap({"engine", "worker"}, PluginSettings(files=files, allow=()))

    def start(name: str, **options: Any) -> EngineCore:
        config = make_config(**options)
        section = msgspec.structs.replace(config.scheduler, scheduler_cls=name)
        config = msgspec.structs.replace(config, scheduler=section)
        core = EngineCore(VllmConfig.from_engine_config(config), host)
        torch.set_num_threads(1)
        return core

    yield start
    host.close()
    sys.modules.pop("observer")
    torch.set_num_threads(threads)


def serve(core: EngineCore, **prompts: list[int]) -> Collected:
    for name, prompt in prompts.items():
        core.add_request(make_request(name, prompt, max_tokens=9))
    collected = Collected()
    while core.has_work():
        collected.add(core.step().outputs)
    core.check_integrity()
    return collected


# -- which one -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("default", Scheduler),
        ("counting", schedulers.Counting),
        ("shortestfirst", schedulers.ShortestFirst),
        ("onebyone", schedulers.OneByOne),
        ("schedulers.Counting", schedulers.Counting),
        ("schedulers:Idle", schedulers.Idle),
    ],
)
def test_a_scheduler_is_named_by_name_or_class_path(name: str, kind: type, make: Make) -> None:
    core = make(name)
    assert type(core.scheduler) is kind
    core.warm_up()
    collected = serve(core, **PROMPTS)
    for each, prompt in PROMPTS.items():
        assert collected.tokens[each] == continuation(prompt, 9), each
    assert core.report_idle() is None
    if isinstance(core.scheduler, schedulers.Counting):
        assert core.scheduler.num_calls == core.num_steps > 9
    core.shutdown()


def test_one_that_is_written_anew_needs_no_more_than_the_interface(make: Make) -> None:
    core = make("onebyone")
    core.warm_up()
    assert core.ready().num_gpu_blocks == 64
    for name, prompt in PROMPTS.items():
        core.add_request(make_request(name, prompt, max_tokens=3))
    report = core.step()
    assert report.next_step_estimate_s > 0.0
    stats = report.scheduler_stats
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.step_counter) == (1, 5, 3)
    core.abort_requests(["r0", "r1", "nobody"])
    core.add_request(make_request("long", [1] * 65))
    collected = Collected()
    while core.has_work():
        collected.add(core.step().outputs)
    refused = collected.last.pop("long")
    assert refused.is_refusal and refused.error == "At most 64 tokens, please."
    assert collected.tokens.pop("long") == []
    assert collected.tokens == {name: continuation(PROMPTS[name], 3) for name in list(PROMPTS)[2:]}


# -- refused at the start ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("schedulers:Wordless", "Wordless lacks schedule, update_from_output; expected every"),
        ("schedulers:Half", "Half lacks update_from_output; expected every method of hookserve"),
        ("schedulers:OldStyle", r"OldStyle.schedule\(self, throttle.*is called with no argum"),
        ("schedulers:Careless", "scheduler 'schedulers:Careless' raised OSError: no queue"),
        ("schedulers:make_nothing", "has no attribute 'make_nothing'"),
        ("schedulers:POISON", "90 is not a class"),
        ("nowhere:Scheduler", "No module named 'nowhere'"),
    ],
)
def test_one_that_cannot_be_driven_is_refused_by_name(name: str, said: str, make: Make) -> None:
    with pytest.raises(PluginError, match=said):
        make(name)


def test_a_plugins_own_is_refused_under_its_plugins_name(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "Idle", schedulers.Half)
    said = r"plugin file:schedulers failed .*scheduler 'idle': Half lacks update_from_output"
    with pytest.raises(PluginError, match=said) as caught:
        make("idle")
    assert caught.value.exit_code == 78


def test_an_unknown_name_is_told_with_the_nearest(make: Make) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean counting\?; registered: .*default"):
        make("countin")


# -- what it does without ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [
        (Scheduler, set()),
        (schedulers.Counting, set()),
        (schedulers.ShortestFirst, {"priority"}),
        (schedulers.OwnVictim, {"select_victim"}),
        (schedulers.OneByOne, set(CAPABILITIES)),
        (schedulers.Pathless, set(CAPABILITIES)),
        (schedulers.Wrapped, set()),
        (schedulers.Kept, set()),
        (schedulers.Stating, set(CAPABILITIES) - {"preemption"}),
        (schedulers.Below, set(CAPABILITIES) - {"preemption"}),
    ],
)
def test_a_replaced_part_takes_along_what_it_carried(kind: type, lacks: set[str]) -> None:
    assert set(CAPABILITIES) - capabilities_of(kind) == lacks


def test_each_way_to_a_capability_begins_and_goes_on_in_the_default() -> None:
    assert Scheduler.carried_by.keys() == CAPABILITIES.keys()
    for way in Scheduler.carried_by.values():
        assert hasattr(Scheduler, way[0])


def test_what_it_does_without_is_told_at_the_start(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        make("default")
        assert not caplog.messages
        make("shortestfirst")
        make("schedulers:OwnVictim")
    unstable = "'shortestfirst' of plugin file:schedulers: a scheduler's interface is not stable"
    assert unstable in caplog.messages[0]
    first, _, hook, second = caplog.messages[1:]
    who = "scheduler 'shortestfirst' of plugin file:schedulers, ShortestFirst, does without: "
    assert first == who + "priority (requests are served by their own priority)"
    asks = "scheduler 'schedulers:OwnVictim' does not ask the hook select_victim, which "
    assert hook == asks + "file:observer implements"
    assert "select_victim (the hook select_victim is asked)" in second


def test_priorities_are_refused_where_nobody_minds_them(make: Make) -> None:
    assert make("counting", policy="priority")
    with pytest.raises(ConfigError, match=r"'shortestfirst' of .*:schedulers knows no prioritie"):
        make("shortestfirst", policy="priority")


# -- while the engine runs -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["schedule", "update_from_output"])
def test_what_it_raises_ends_the_engine_under_its_name(method: str, make: Make) -> None:
    core = make("brittle")
    assert isinstance(core.scheduler, schedulers.Brittle)
    core.scheduler.fault = method
    assert serve(core, a=[1, 2]).tokens["a"] == continuation([1, 2], 9)
    with pytest.raises(SchedulerError) as caught:
        serve(core, b=[schedulers.POISON, 2])
    said = f"{method} raised ValueError: the third queue is missing"
    assert str(caught.value) == f"scheduler 'brittle' of plugin file:schedulers: {said}"
    assert caught.value.exit_code == 70


@pytest.mark.parametrize("answer", [(None,), ({"a": 1},)])
def test_an_answer_that_is_no_step_ends_the_engine(answer: Any, make: Make) -> None:
    core = make("schedulers:Tongue")
    core.scheduler.answer = answer  # type: ignore[attr-defined]
    kind = type(answer[0]).__name__
    with pytest.raises(SchedulerError, match=f"schedule returned a {kind}; expected SchedulerOut"):
        serve(core, a=[1])


def plan(total: int, counts: dict[str, int], *told: str) -> SchedulerOutput:
    return SchedulerOutput(
        scheduled_cached_reqs=CachedRequestData(req_ids=list(told)),
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=total,
    )


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (plan(3, {"a": 2}, "a"), "with a total of 3 tokens; its requests have 2"),
        (plan(65, {"a": 65}, "a"), "of 65 tokens; max_num_batched_tokens is 64"),
        (plan(2, {"a": 1, "b": 1}, "a"), "in which request 'b' does not stand once"),
        (plan(1, {"a": 1}, "a", "c"), "in which request 'c' does not stand once"),
        (plan(1, {"a": 1}, "a", "a"), "in which request 'a' does not stand once"),
        (plan(0, {"a": 1, "b": -1}, "a", "b"), "with -1 tokens for request 'b'"),
    ],
)
def test_a_step_that_contradicts_itself_is_its_schedulers(
    step: SchedulerOutput, said: str, make: Make
) -> None:
    core = make("schedulers:Tongue")
    core.scheduler.answer = (step,)  # type: ignore[attr-defined]
    with pytest.raises(SchedulerError, match=f"^scheduler 'schedulers:Tongue': .* a step {said}"):
        serve(core, a=[1])


def test_one_that_chooses_nobody_for_too_long_is_a_stall_with_its_name(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_guard, "NOTHING_S", 0.05)
    core = make("idle")
    assert isinstance(core.scheduler, schedulers.Idle)
    core.scheduler.patience = 10**9
    said = r"'idle' of plugin file:schedulers has chosen nobody for 0\.05 s while requests \(2\)"
    with pytest.raises(SchedulerError, match=said):
        serve(core, a=[1], b=[2])
    assert core.num_steps == 0, "that is no progress"


def test_a_moment_of_choosing_nobody_does_no_harm(make: Make) -> None:
    core = make("idle")
    assert isinstance(core.scheduler, schedulers.Idle)
    core.scheduler.patience = 3
    assert serve(core, a=[1, 2]).tokens["a"] == continuation([1, 2], 9)
    assert core.num_steps == 9
    assert isinstance(core.scheduler.schedule(), SchedulerOutput)
