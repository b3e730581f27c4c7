"""``--trace-hooks``: one line a call, of what the pattern fits; nothing is wrapped otherwise."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from typing import Any

import pytest

from hookserve.hookspecs import RequestRecord, hookimpl

RECORD = RequestRecord("r", "/v1/completions", "m", 3, 4, "stop", None, 0.0, 0.1, 0.2)
LINE = re.compile(r"trace (\S+) pid (\d+): (\w+) of (\S+) took (\d+) us, (.*)", re.DOTALL)


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("shown")


class Traced:
    def __init__(self) -> None:
        self.answer: Any = None

    @hookimpl
    def select_victim(self) -> Any:
        return self.answer

    @hookimpl
    def before_step(self, batch: Any, ctx: Any) -> None:
        if batch == "fail":
            raise ValueError("no\nsecond line")

    @hookimpl
    async def request_finished(self) -> str:
        await asyncio.sleep(0)
        return "ended"


class Other:
    @hookimpl
    def before_step(self) -> None: ...


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, ...]]:
    """Hook, plugin and result of each traced call; the rest is checked here."""
    found = [LINE.fullmatch(message) for message in caplog.messages]
    traced = [match for match in found if match is not None]
    assert all(match[1] == "engine" and int(match[2]) == os.getpid() for match in traced)
    return [(match[3], match[4], match[6]) for match in traced]


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookserve")


@pytest.mark.parametrize(
    ("pattern", "traced"),
    [
        ("*", {"Traced", "Other"}),
        ("before_*", {"Traced", "Other"}),
        ("Traced", {"Traced"}),
        ("object:T*", {"Traced"}),
        ("after_step", set()),
        (None, set()),
    ],
)
def test_the_pattern_fits_hooks_and_plugins(
    pattern: str | None, traced: set[str], make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(Traced(), Other(), roles=["engine", "worker"], trace_hooks=pattern)
    host.calls.before_step("batch")
    assert {line for line in lines(caplog) if line[0] == "before_step"} == {
        ("before_step", f"object:{name}", "returned None") for name in traced
    }


def test_what_is_not_traced_is_not_wrapped(make_host: Any) -> None:
    other = Other()
    host = make_host(Traced(), other, roles=["engine", "worker"], trace_hooks="Traced")
    bound = {guard.plugin.name: guard.call for guard in host.calls.hooks["before_step"].guards}
    assert bound["Other"].function == other.before_step


def test_a_line_has_the_beginning_of_the_result_whatever_it_is(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Traced()
    host = make_host(plugin, roles=["engine", "worker"], trace_hooks="*")
    for plugin.answer in (None, "x" * 200, "two\nlines", Odd()):
        host.calls.hooks["select_victim"].ask_now(lambda answer: answer)
    shown = [result for hook, _, result in lines(caplog) if hook == "select_victim"]
    assert shown == [
        "returned None",
        "returned '" + "x" * 116 + "...",
        r"returned 'two\nlines'",
        "returned a Odd that cannot be shown (RuntimeError: shown)",
    ]


def test_a_failure_is_traced_and_stays_one(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(Traced(), roles=["engine", "worker"], trace_hooks="before_step")
    host.calls.before_step("fail")
    assert lines(caplog) == [("before_step", "object:Traced", "raised ValueError: no")]
    assert "plugin object:Traced failed in before_step" in caplog.text


def test_a_coroutine_is_traced_when_it_has_ended(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(Traced(), roles=["front"], trace_hooks="request_finished")
    asyncio.run(host.calls.request_finished(RECORD))
    (message,) = [text for text in caplog.messages if text.startswith("trace")]
    assert re.fullmatch(
        rf"trace front pid {os.getpid()}: request_finished of object:Traced took \d+ us, "
        "returned 'ended'",
        message,
    )
