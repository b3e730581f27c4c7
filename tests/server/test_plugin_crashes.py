"""A plugin whose code ends a process without a word: named, tried once more, then left out."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scripted_engine
from hookserve.engine.errors import EngineDeadError, EngineStartError
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import Host, PluginReport, PluginSettings, RequiredPluginError, bootstrap
from hookserve.server.runtime import ServerRuntime
from hookserve.server.settings import ServerSettings

COMMAND = (sys.executable, "-P", scripted_engine.__file__, "normal")

PLUGIN = """
import ctypes, os, signal, sys
from hookserve.hookspecs import hookimpl

os.environ["CRASHER"] = "was here"

def end(stage):
    "Where and how the test wants it: as often as there are lines in the file."
    here = "scripted_engine" in sys.argv[0]
    with open({plan!r}, "r+") as file:
        wanted, way, times = file.read().split()
        if not here or wanted != stage or times == "0":
            return
        file.seek(0)
        file.truncate()
        file.write(f"{{wanted}} {{way}} {{int(times) - 1}}")
    if way == "segfault":
        ctypes.string_at(0)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)

end("import")

@hookimpl
def register_model():
    end("registration")

@hookimpl
def process_started():
    end("start")

@hookimpl
def after_schedule():
    end("step")
"""

HOW = {
    "segfault": "was killed by SIGSEGV",
    "kill": "was killed by SIGKILL",
    "exit": "ended with exit code 0",
}


class Crasher:
    """A plugin file whose code ends the engine, and a runtime that has it."""

    def __init__(self, folder: Path) -> None:
        # A module's name is used once in a process.
        self.name = f"crasher_{folder.name}"
        self.file = folder / f"{self.name}.py"
        self._plan = folder / "plan"
        self.file.write_text(PLUGIN.format(plan=str(self._plan)))

    def will(self, stage: str, way: str, times: int) -> None:
        self._plan.write_text(f"{stage} {way} {times}")

    @property
    def times_left(self) -> int:
        return int(self._plan.read_text().split()[2])


@pytest.fixture
def crasher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crasher:
    monkeypatch.delenv("CRASHER", raising=False)
    return Crasher(tmp_path)


@pytest.fixture
def make_runtime(
    crasher: Crasher, make_engine_config: Callable[..., Any], byte_tokenizer: Any
) -> Iterator[Callable[..., ServerRuntime]]:
    hosts: list[Host] = []

    def make(*, required: bool = False) -> ServerRuntime:
        require = (crasher.name,) if required else ()
        settings = PluginSettings(files=(str(crasher.file),), require=require)
        hosts.append(bootstrap(["front"], settings))
        config = make_engine_config()
        return ServerRuntime(ServerSettings(), hosts[-1], config, byte_tokenizer, command=COMMAND)

    yield make
    for host in hosts:
        host.close()
    os.environ.pop("CRASHER", None)


def report_of(runtime: ServerRuntime, crasher: Crasher) -> PluginReport:
    (report,) = [each for each in runtime.host.describe() if each.name == crasher.name]
    return report


async def start(runtime: ServerRuntime) -> None:
    try:
        await runtime.start()
    finally:
        await runtime.stop()


CASES = [
    ("import", "segfault"),
    ("registration", "kill"),
    ("registration", "segfault"),
    ("start", "exit"),
]


@pytest.mark.parametrize(("stage", "way"), CASES)
def test_a_plugin_that_crashes_the_engine_twice_is_out_everywhere(
    stage: str, way: str, crasher: Crasher, make_runtime: Any, caplog: pytest.LogCaptureFixture
) -> None:
    crasher.will(stage, way, 2)
    runtime = make_runtime()
    assert os.environ["CRASHER"] == "was here"
    asyncio.run(start(runtime))
    assert crasher.times_left == 0
    identity = f"file:{crasher.name}"
    ran = f"its code ran when the process {HOW[way]}"
    report = report_of(runtime, crasher)
    assert (report.state, report.stage, report.error) == ("out", "crash", ran)
    assert report.reason.startswith("it failed in the engine process")
    assert "CRASHER" not in os.environ, "what it did here is undone"
    lines = [record.getMessage() for record in caplog.records if identity in record.getMessage()]
    assert f"plugin {identity}: {ran} (engine); the engine is started once more" in lines
    assert (
        f"plugin {identity} failed in the engine process (crash: {ran}); the engine starts again "
        "without it" in lines
    )


def test_a_plugin_that_crashed_the_engine_once_stays(crasher: Crasher, make_runtime: Any) -> None:
    """What ended the process need not have been its fault."""
    crasher.will("registration", "kill", 1)
    runtime = make_runtime()
    asyncio.run(start(runtime))
    assert crasher.times_left == 0
    assert report_of(runtime, crasher).state == "active"


def test_a_required_plugin_that_crashes_the_engine_stops_the_start(
    crasher: Crasher, make_runtime: Any
) -> None:
    crasher.will("registration", "segfault", 9)
    with pytest.raises(RequiredPluginError, match=f"file:{crasher.name}.*SIGSEGV") as caught:
        asyncio.run(start(make_runtime(required=True)))
    assert caught.value.exit_code == 78
    assert crasher.times_left == 7


def test_a_crash_in_nobodys_code_stops_the_start_at_once(
    crasher: Crasher, make_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "COMMAND", (*COMMAND[:-1], "crash"))
    crasher.will("never", "kill", 0)
    with pytest.raises(EngineStartError, match=r"was killed by SIGSEGV before it was ready"):
        asyncio.run(start(make_runtime()))


def test_a_plugin_that_crashes_a_serving_engine_is_named(
    crasher: Crasher, make_runtime: Any
) -> None:
    crasher.will("step", "segfault", 1)

    async def run() -> None:
        runtime = make_runtime()
        await runtime.start()
        try:
            await asyncio.wait_for(serve_until_death(runtime), 10)
        finally:
            await runtime.stop()

    async def serve_until_death(runtime: ServerRuntime) -> None:
        wanted = rf"was killed by SIGSEGV while the code of plugin file:{crasher.name} ran"
        with pytest.raises(EngineDeadError, match=wanted):
            async for _ in runtime.client.generate([7], SamplingParams(max_tokens=2), "a test"):
                pass
        await runtime.supervisor.died.wait()
        problem = runtime.health.problem()
        assert problem is not None and problem.code == "engine_dead"

    asyncio.run(run())
