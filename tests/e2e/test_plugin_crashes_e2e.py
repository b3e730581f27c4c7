"""Real servers with plugins that end a process: at the start they are left out after a second time,
later the streams end with an error and the last line of the log has their name. In the front
nobody is left to say so."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fault_plugins
from fault_plugins import IMPORT, FaultPlugin
from harness import RunningServer, run_command

LATE = """
import ctypes, logging, os
from hookserve.hookspecs import hookimpl

@hookimpl
def {hook}():
    logging.getLogger("own.name").warning("a step")
    if os.path.exists({flag!r}):
        {end}
"""
KILLED = f"its code ran when the process was killed by {signal.SIGSEGV.name}"
LEFT = "its code ran when the process ended with exit code 0"


def stream(server: RunningServer, prompt: list[int], begun: threading.Barrier) -> list[Any]:
    """The events of a stream; all of them wait for one another after the first."""
    body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": True}
    events: list[Any] = []
    with (
        server.client() as client,
        client.stream("POST", "/v1/completions", json=body) as reply,
    ):
        for line in reply.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                events.append(data if data == "[DONE]" else json.loads(data))
                if len(events) == 1:
                    begun.wait(30)
    return events


def check_streams_end_with_an_error(server: RunningServer, flag: Path) -> None:
    """Three of them, in the middle of which the plugin ends its process."""
    begun = threading.Barrier(3, action=flag.touch)
    with ThreadPoolExecutor(3) as pool:
        streams = list(pool.map(lambda n: stream(server, [n], begun), (1, 2, 3)))
    for *texts, last in streams:
        assert texts and all(event["choices"][0]["text"] is not None for event in texts)
        assert len(texts) < 400
        assert last["error"]["code"] == "engine_dead", last


def check_the_end(server: RunningServer, sentence: str) -> None:
    assert server.wait_exit(10) == 70, server.output()
    last = server.stderr.splitlines()[-1]
    assert re.search(
        rf"\(Front pid=\d+\) ERROR .* the server ends with exit code 70: {sentence}$", last
    ), last
    assert "Traceback" not in server.stderr


def check_left_out(server: RunningServer, plugin: FaultPlugin, ran: str) -> None:
    """It was tried once more before, and everybody says so."""
    once_more = (
        f"plugin {plugin.identity}: {ran} ({plugin.process}); the engine is started once more"
    )
    out = f"plugin {plugin.identity} failed in the {plugin.process} process (crash: {ran}); "
    assert 0 < server.stderr.index(once_more) < server.stderr.index(out)
    reply = server.get("/v1/plugins").json()
    reports = {
        process: report
        for process, reports in reply["processes"].items()
        for report in reports
        if report["identity"] == plugin.identity
    }
    assert reports.keys() == reply["processes"].keys()
    for process, report in reports.items():
        found = (report["state"], report["stage"], report["error"])
        assert found == ("out", "crash", ran), process
        assert report["reason"].startswith(f"it failed in the {plugin.process} process"), process


def start(
    running_server: Callable[..., RunningServer],
    model: Path,
    folder: Path,
    early: list[FaultPlugin],
    late: str,
    *flags: str,
) -> RunningServer:
    (folder / "late.py").write_text(late)
    plugins = [*fault_plugins.write(folder, early), "--plugin", str(folder / "late.py")]
    return running_server([str(model), *plugins, *flags])


def test_who_ends_the_engine_is_left_out_at_the_start_and_named_later(
    running_server: Callable[..., RunningServer], tiny_llama: Path, tmp_path: Path
) -> None:
    early = [
        FaultPlugin("engine", IMPORT, "segfaults"),
        FaultPlugin("engine", "register_model", "leaves"),
    ]
    flag = tmp_path / "flag"
    late = LATE.format(hook="after_schedule", flag=str(flag), end="ctypes.string_at(0)")
    server = start(running_server, tiny_llama, tmp_path, early, late)
    for plugin, ran in zip(early, (KILLED, LEFT), strict=True):
        check_left_out(server, plugin, ran)
    check_streams_end_with_an_error(server, flag)
    ended = f"was killed by {signal.SIGSEGV.name} while the code of plugin file:late ran"
    check_the_end(server, rf"the engine process \(pid \d+\) {ended}")


def test_who_ends_a_worker_is_left_out_at_the_start_and_named_later(
    running_server: Callable[..., RunningServer], tiny_llama: Path, tmp_path: Path
) -> None:
    early = [FaultPlugin("worker", "process_started", "segfaults")]
    flag = tmp_path / "flag"
    late = LATE.format(hook="before_step", flag=str(flag), end="os._exit(0)")
    two = ("--tensor-parallel-size", "2")
    server = start(running_server, tiny_llama, tmp_path, early, late, *two)
    check_left_out(server, early[0], KILLED)
    check_streams_end_with_an_error(server, flag)
    for rank in (0, 1):
        said = rf"\(Worker {rank} pid=\d+\) WARNING .* plugin file:late says: a step"
        assert re.search(said, server.stderr), server.stderr
    ended = "ended with exit code 0 while the code of plugin file:late ran"
    check_the_end(server, rf"the engine stopped: worker \d \(pid \d+\) {ended}")


@pytest.mark.parametrize(
    ("fault", "code"), [("segfaults", -signal.SIGSEGV), ("leaves", 0), ("interrupts", 130)]
)
def test_who_ends_the_front_ends_the_server(
    fault: str, code: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """Nothing stands behind the front. A segfault leaves the lines of code in which it was; else
    only the exit code is known, and ``server plugins bisect`` finds who it was. An interrupt in
    the main thread cannot be told from the operator's own."""
    plugin = FaultPlugin("front", "process_started", fault)
    flags = fault_plugins.write(tmp_path, [plugin])
    done = run_command(["run", str(tiny_llama), *flags])
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    file = f'File "{tmp_path}/{plugin.name}.py", line '
    assert (file in done.stderr) is (fault == "segfaults")
