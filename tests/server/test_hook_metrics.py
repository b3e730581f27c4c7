"""What hooks cost and how often they failed, as `/metrics` shows it for every process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hookserve.engine import plugin_reports
from hookserve.hookspecs import hookimpl
from hookserve.hookspecs.report import HookReport, PluginReport, ProcessReport
from hookserve.server import hook_metrics
from scripted_engine import say

NUM_REQUESTS = 20
COUNTING = ("object:Counting", "request_finished", "front")


class Failing:
    @hookimpl
    def request_finished(self) -> None:
        raise ValueError("no")


class Counting:
    @hookimpl
    async def request_finished(self) -> None: ...


def report_of(process: str, hook: HookReport) -> ProcessReport:
    plugin = PluginReport(
        identity="file:toy",
        name="toy",
        group="file",
        distribution=None,
        version=None,
        file=None,
        api="",
        roles=["engine", "worker"],
        state="active",
        hooks=[hook],
    )
    return ProcessReport(process=process, pid=1, roles=["engine", "worker"], plugins=[plugin])


STEPS = HookReport(
    name="after_step",
    roles=["worker"],
    where="toy.py:1",
    called_here=True,
    calls=64,
    errors=3,
    sampled=4,
    sampled_s=0.5,
)


async def samples_of(served: Any) -> dict[tuple[str, str, str], tuple[float, float, float]]:
    """``(plugin, hook, process)`` to count and seconds of the timed calls, and failures."""
    text = (await served.http.get("/metrics")).text
    assert "# TYPE hookserve_hook_seconds summary" in text
    assert "# TYPE hookserve_hook_errors_total counter" in text
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("hookserve_hook_"):
            for sample in family.samples:
                key = tuple(sample.labels[label] for label in ("plugin", "hook", "process"))
                found.setdefault(key, {})[sample.name.removeprefix("hookserve_hook_")] = (
                    sample.value
                )
    return {
        key: (each["seconds_count"], each["seconds_sum"], each["errors_total"])
        for key, each in found.items()
    }


def test_the_hooks_of_front_are_timed_and_their_failures_counted(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), plugins=[Counting(), Failing()]) as served:
            assert await samples_of(served) == {}
            for _ in range(NUM_REQUESTS):
                await served.http.post("/v1/completions", json={"prompt": "abc"})
            async with asyncio.timeout(5):  # the hook runs beside the reply
                while (await samples_of(served)).get(COUNTING, (0,))[0] < NUM_REQUESTS:
                    await asyncio.sleep(0.005)
            found = await samples_of(served)
        count, seconds, errors = found[COUNTING]
        assert count == NUM_REQUESTS
        assert 0 < seconds < 5
        assert errors == 0
        assert found["object:Failing", "request_finished", "front"][2] == 5, "then it is off"

    asyncio.run(run())


def test_what_the_engine_counts_is_shown_also_while_it_does_not_answer(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_metrics, "PATIENCE_S", 0.05)
    key = ("file:toy", "after_step", "worker 0")

    async def run() -> None:
        async with serve_script(say("a"), plugins=[Counting()]) as served:
            served.engine.reports = [report_of("worker 0", STEPS)]
            assert (await samples_of(served))[key] == (4, 0.5, 3)
            served.engine.reports = None
            started = time.monotonic()
            for _ in range(3):
                assert (await samples_of(served))[key] == (4, 0.5, 3), "the last that is known"
            assert time.monotonic() - started < 2
            assert served.engine.num_questions == 2, "one question is on its way at a time"

    asyncio.run(run())


def test_nobody_is_asked_where_no_plugin_acts_behind_the_front(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            served.engine.reports = [report_of("engine", STEPS)]
            assert await samples_of(served) == {}
            assert served.engine.num_questions == 0

    asyncio.run(run())


def test_built_in_plugins_and_hooks_that_never_ran_are_left_out(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), plugins=[Counting()]) as served:
            idle = msgspec.structs.replace(STEPS, calls=0, errors=0)
            builtin = report_of("engine", STEPS)
            builtin.plugins[0] = msgspec.structs.replace(builtin.plugins[0], group="builtin")
            served.engine.reports = [report_of("worker 0", idle), builtin]
            assert await samples_of(served) == {}

    asyncio.run(run())


def test_an_engine_that_does_not_answer_is_named_with_the_reason(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a bounded time, and the front's own plugins are told of all the same."""
    monkeypatch.setattr(plugin_reports.EngineReports.ask, "__defaults__", (0.05,))

    async def run() -> None:
        async with serve_script(say("a"), plugins=[Counting()]) as served:
            served.engine.reports = None
            reply = (await served.http.get("/v1/plugins")).json()
            assert reply["unanswered"] == {"engine": "no answer within 0.05 s"}
            assert set(reply["processes"]) == {"front"}
            identities = {each["identity"] for each in reply["processes"]["front"]}
            assert "object:Counting" in identities
            silent = ProcessReport(process="worker 1", pid=7, problem="no answer within 1 s")
            served.engine.reports = [silent]
            reply = (await served.http.get("/v1/plugins")).json()
            assert reply["unanswered"] == {"worker 1": "no answer within 1 s"}
            assert reply["pids"]["worker 1"] == 7

    asyncio.run(run())
