"""What a plugin put in the place of code that nothing calls, by the reports of all processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hookserve.hookspecs import hookimpl
from hookserve.hookspecs.report import PluginReport, ProcessReport
from hookserve.server.patch_audit import DeadPatches, dead_patches, log_dead_patches
from hookserve.server.serving import Serving
from scripted_engine import say


def process(name: str, *plugins: PluginReport, problem: str | None = None) -> ProcessReport:
    return ProcessReport(process=name, plugins=list(plugins), problem=problem)


def plugin(identity: str, patches: str, uncalled: str) -> PluginReport:
    return PluginReport(
        identity=identity,
        name=identity,
        group="g",
        distribution=None,
        version=None,
        file=None,
        api="",
        roles=[],
        state="active",
        patches=patches.split(),
        uncalled_patches=uncalled.split(),
    )


def test_a_patch_is_dead_where_no_process_has_called_it() -> None:
    reports = [
        process("front", plugin("a", "m:f m:g m:h", "m:f m:g"), plugin("b", "m:f", "m:f")),
        process("engine", plugin("a", "m:f m:g", "m:g")),
        process("worker 0", plugin("c", "m:f", "")),
    ]
    assert dead_patches(reports) == {
        "a": DeadPatches(["m:g"], ["front", "engine"]),
        "b": DeadPatches(["m:f"], ["front"]),
    }


def test_nobody_is_blamed_for_what_a_silent_process_may_have_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = process("front", plugin("a", "m:f", "m:f"))
    log_dead_patches([dead, process("engine", problem="no answer")])
    assert caplog.messages == []
    log_dead_patches([dead])
    assert caplog.messages == [
        "plugin a replaced m:f, and nothing has called that by the end of the first request (in "
        "front): it may be of no use here"
    ]


class Patches:
    """Replaces one method that every request calls, and one that nothing does here."""

    @hookimpl
    def register_model(self) -> None:
        for name in ("model_name", "close"):
            before = getattr(Serving, name)

            def changed(*args: Any, before: Any = before) -> Any:
                return before(*args)

            setattr(Serving, name, changed)


def test_what_the_first_request_has_not_called_is_told_once(
    serve_script: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model_name", "close"):
        monkeypatch.setattr(Serving, name, getattr(Serving, name))  # put back in the end
    told = (
        "plugin object:Patches replaced hookserve.server.serving:Serving.close, and nothing has "
        "called that by the end of the first request (in front)"
    )

    async def run() -> None:
        async with serve_script(say("a"), plugins=[Patches()]) as served:
            served.engine.reports = []
            assert not any("replaced" in line for line in caplog.messages)
            for _ in range(2):
                await served.http.post("/v1/completions", json={"prompt": "abc"})
            async with asyncio.timeout(5):  # it is told beside the reply
                while not any(line.startswith(told) for line in caplog.messages):
                    await asyncio.sleep(0.005)

    asyncio.run(run())
    assert sum("replaced" in line for line in caplog.messages) == 1
