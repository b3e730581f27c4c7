"""``PluginThreads``: calls that do not wait for one another, as long as there are threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from hookserve.hookspecs.plugin_thread import Outcome, PluginThread, build_within
from hookserve.hookspecs.plugin_threads import MAX_THREADS, PluginThreads


class Calls:
    """Calls that run until they are let go."""

    def __init__(self) -> None:
        self.threads = PluginThreads("plugin p")
        self.goes_on = threading.Event()
        self.begun = threading.Semaphore(0)

    def hang(self) -> Future[Outcome]:
        def work() -> None:
            self.begun.release()
            self.goes_on.wait(30)

        return self.threads.call(work)

    def name(self) -> Future[Outcome]:
        return self.threads.call(lambda: threading.current_thread().name)


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    yield made
    made.goes_on.set()


def result(call: Future[Outcome]) -> Any:
    return call.result(10).unwrap()


def test_calls_one_after_the_other_share_a_thread(calls: Calls) -> None:
    assert {result(calls.name()) for _ in range(20)} == {"plugin p 0"}


def test_a_call_that_hangs_keeps_no_other_waiting(calls: Calls) -> None:
    hanging = calls.hang()
    assert {result(calls.name()) for _ in range(20)} == {"plugin p 1"}
    assert not hanging.done()
    calls.goes_on.set()
    assert result(hanging) is None


def test_there_are_so_many_threads_and_then_calls_wait(calls: Calls) -> None:
    hanging = [calls.hang() for _ in range(MAX_THREADS)]
    for _ in hanging:
        assert calls.begun.acquire(timeout=10)
    waits = calls.name()
    assert not calls.threads.leave(waits, 30), "it has not begun"
    assert waits.cancelled()
    waits = calls.name()
    calls.goes_on.set()
    assert result(waits).startswith("plugin p ")
    assert all(result(each) is None for each in hanging)


def test_where_all_are_given_up_the_next_call_fails_at_once(calls: Calls) -> None:
    hanging = [calls.hang() for _ in range(MAX_THREADS)]
    for _ in hanging:
        assert calls.begun.acquire(timeout=10)
    assert all(calls.threads.leave(each, 0) for each in hanging[:-1])
    behind = calls.name()
    assert not behind.done(), "one of them is still waited for"
    assert calls.threads.leave(hanging[-1], 0)
    with pytest.raises(TimeoutError, match="still runs"):
        result(behind)
    with pytest.raises(TimeoutError, match="still runs"):
        calls.name()
    calls.goes_on.set()
    for each in hanging:
        each.result(10)
    assert result(calls.name()).startswith("plugin p ")


def test_nothing_is_left_of_a_call_that_has_ended(calls: Calls) -> None:
    call = calls.name()
    result(call)
    assert not calls.threads.leave(call, 0)
    assert result(calls.name()) == "plugin p 0"


def test_what_is_built_leaves_no_thread() -> None:
    thread = build_within(10.0, "p", "something", threading.current_thread)
    thread.join(10)
    assert not thread.is_alive()


def test_a_thread_that_was_let_go_does_what_waits_and_another_goes_on() -> None:
    thread = PluginThread("plugin p")
    before = [thread.call(threading.current_thread) for _ in range(3)]
    thread.end()
    thread.end()
    (first,) = {result(call) for call in before}
    first.join(10)
    assert not first.is_alive()
    assert result(thread.call(threading.current_thread)) is not first
    thread.end()
