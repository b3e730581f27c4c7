"""Hooks that take too long, in real processes: who waits for them and for how long, what is said,
and that every text is as without them. And what ``--trace-hooks`` says of the engine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer, wait_until

PLUGIN = """
import time

from hookserve.hookspecs import hookimpl

STEPS = []


@hookimpl
def before_step(batch):
    STEPS.append(batch.step)
    if len(STEPS) == 6:
        time.sleep(0.8)


@hookimpl
def after_schedule(output):
    pass


@hookimpl
def request_finished(record):
    time.sleep(30)
"""
OTHER = """
from hookserve.hookspecs import hookimpl


@hookimpl
def before_step(batch):
    pass
"""
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


def complete(server: RunningServer, prompt: list[int]) -> str:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    text: str = server.post("/v1/completions", body).json()["choices"][0]["text"]
    return text


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "slow_one.py").write_text(PLUGIN)
    (folder / "other.py").write_text(OTHER)
    files = [f"--plugin={folder / name}.py" for name in ("slow_one", "other")]
    times = ["--step-hook-timeout=0.4", "--front-hook-timeout=0.4"]
    with RunningServer([str(tiny_llama), *files, *times, "--trace-hooks", "after_*"]) as running:
        yield running


@pytest.fixture(scope="module")
def texts(server: RunningServer) -> list[str]:
    """Of three requests at once, in whose steps one hook was slow."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda prompt: complete(server, prompt), PROMPTS))


def hooks(server: RunningServer, process: str, identity: str) -> dict[str, Any]:
    reports = server.get("/v1/plugins").json()["processes"][process]
    (found,) = [report for report in reports if report["identity"] == identity]
    return {hook["name"]: hook for hook in found["hooks"]}


def test_a_slow_observer_of_the_engine_is_off_after_one_call(
    server: RunningServer, texts: list[str]
) -> None:
    line = r"plugin file:slow_one: hook before_step is switched off: one call took 0\.\d+ s"
    wait_until(lambda: re.search(line, server.stderr) is not None, 10, server.stderr)
    slow = hooks(server, "engine", "file:slow_one")
    assert (slow["before_step"]["switched_off"], slow["before_step"]["calls"]) == (True, 6)
    assert not slow["after_schedule"]["switched_off"], "its other hooks go on"
    other = hooks(server, "engine", "file:other")["before_step"]
    assert not other["switched_off"]
    assert other["calls"] > 6


def test_the_texts_are_as_without_it(server: RunningServer, texts: list[str]) -> None:
    assert [complete(server, prompt) for prompt in PROMPTS] == texts
    assert all(texts)


def test_an_observer_of_the_front_that_hangs_delays_nobody(
    server: RunningServer, texts: list[str]
) -> None:
    line = "plugin file:slow_one: hook request_finished is switched off: one call took 0.4 s"
    wait_until(lambda: line in server.stderr, 10, server.stderr)
    started = time.monotonic()
    assert complete(server, PROMPTS[0]) == texts[0]
    assert time.monotonic() - started < 5


def test_the_engine_traces_what_was_asked_for_and_nothing_else(
    server: RunningServer, texts: list[str]
) -> None:
    traced = re.findall(r"trace (\w+) pid (\d+): (\w+) of (\S+) took \d+ us, (.*)", server.stderr)
    assert set(traced) == {
        ("engine", str(server.engine_pid), "after_schedule", "file:slow_one", "returned None")
    }
    calls = hooks(server, "engine", "file:slow_one")["after_schedule"]["calls"]
    wait_until(lambda: server.stderr.count(": after_schedule of file:slow_one") >= calls, 10, "")
