"""Asking an engine's processes for their plugins, from the event loop's thread and from others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from hookserve.engine import plugin_reports
from hookserve.engine.plugin_reports import EngineReports
from hookserve.hookspecs import HostError
from hookserve.hookspecs.report import ProcessReport

ANSWER = [ProcessReport(process="engine", pid=1)]


class Client:
    async def describe(self, timeout: float) -> list[ProcessReport]:
        return ANSWER


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(asyncio.sleep(0.01))  # what was given up ends
    loop.close()


@pytest.fixture
def ask(loop: asyncio.AbstractEventLoop) -> Iterator[Callable[[], Any]]:
    """What a plugin manager asks for the other processes."""
    pm: Any = SimpleNamespace(others=[])
    with ExitStack() as stack:

        async def enter() -> None:
            stack.enter_context(EngineReports(Client()).told_by(pm))  # type: ignore[arg-type]

        loop.run_until_complete(enter())
        yield pm.others[0]
    assert pm.others == []


def test_another_thread_waits_for_the_loop(
    loop: asyncio.AbstractEventLoop, ask: Callable[[], Any]
) -> None:
    assert loop.run_until_complete(asyncio.to_thread(ask)) == ANSWER


def test_the_loops_own_thread_is_told_that_it_would_wait_for_itself(
    loop: asyncio.AbstractEventLoop, ask: Callable[[], Any]
) -> None:
    async def in_the_loop() -> None:
        ask()

    with pytest.raises(HostError, match=r"await asyncio\.to_thread"):
        loop.run_until_complete(in_the_loop())


def test_a_loop_that_stands_still_is_not_waited_for(
    ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_reports, "LOOP_TIMEOUT_S", 0.05)
    (report,) = ask()
    assert report.problem == "the event loop of the engine does not run"
