"""The four ways of calling, and the guards: who failed, what passes, what is counted."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookserve.hookspecs import Denied, Host, PluginError, RequestRecord, hookimpl, running
from hookserve.hookspecs.coarse_clock import CoarseClock
from hookserve.hookspecs.context import enter, owner_of
from hookserve.hookspecs.guard import Guard
from hookserve.hookspecs.hook import Collect, First, Notify, Refuse
from hookserve.hookspecs.markers import HookInfo
from hookserve.hookspecs.plugin import Plugin

RECORD = RequestRecord("r", "/v1/completions", "m", 3, 4, "stop", None, 0.0, 0.1, 0.2)


def plugin(name: str) -> Plugin:
    return Plugin(identity=f"file:{name}", name=name, group="file", load=lambda: None)


def make(
    kind: type,
    *functions: Callable[..., Any],
    refuse: Refuse | None = None,
    budget_s: float = 5.0,
    is_of_a_loop: bool = True,
    **info: Any,
) -> Any:
    """A hook of one argument, with an implementation for each function, owned by its name."""
    facts = {"call": "notify", "roles": ("front",), "failure": "request", **info}
    known = HookInfo(name="hook", arguments=("value",), **facts)
    guards = [
        Guard(plugin(each.__name__), each, is_coroutine=inspect.iscoroutinefunction(each))
        for each in functions
    ]
    coarse = CoarseClock(budget_s) if is_of_a_loop else None
    return kind(known, guards, refuse, budget_s=budget_s, coarse=coarse)


def leave(value: Any) -> Any:
    sys.exit(3)


class Panic(BaseException):
    """As compiled libraries raise them: no ``Exception``, and no way for the program to end."""


def panic(value: Any) -> Any:
    raise Panic("index out of bounds")


def interrupt(value: Any) -> Any:
    raise KeyboardInterrupt


def cancel(value: Any) -> Any:
    raise asyncio.CancelledError


def fail(value: Any) -> Any:
    raise ValueError("no\nsecond line")


# -- collect --------------------------------------------------------------------------------------


def test_collect_keeps_owners_and_goes_on_past_failures() -> None:
    refused = []

    def one(value: Any) -> Any:
        return value + 1

    def many(value: Any) -> Iterator[Any]:
        yield value
        yield running()

    def broken_later(value: Any) -> Iterator[Any]:
        yield value
        raise ValueError("late")

    def endless(value: Any) -> Iterator[Any]:
        while True:
            yield value

    hook = make(
        Collect,
        fail,
        one,
        leave,
        panic,
        many,
        broken_later,
        endless,
        refuse=lambda plugin, info, stage, error: refused.append((plugin.name, stage, error)),
        failure="refuse",
    )
    first, second = hook(1)
    assert (first.owner.name, first.value) == ("one", 2)
    assert (second.owner.name, second.value) == ("many", [1, second.owner])
    assert [(name, stage, type(error)) for name, stage, error in refused] == [
        ("fail", "register", ValueError),
        ("leave", "register", SystemExit),
        ("panic", "register", Panic),
        ("broken_later", "register", ValueError),
        ("endless", "register", ValueError),
    ]


def same(value: Any) -> Any:
    return value


# -- first ----------------------------------------------------------------------------------------


def test_first_awaits_each_answer_before_it_asks_the_next() -> None:
    asked = []

    async def slow_none(value: Any) -> None:
        asked.append("began")
        await asyncio.sleep(0)
        asked.append("ended")

    def answers(value: Any) -> str:
        asked.append("answers")
        return f"answer to {value}"

    def never(value: Any) -> str:
        raise AssertionError("asked after an answer")

    answer = asyncio.run(make(First, slow_none, answers, never).ask(same, "q"))
    assert (answer.owner.name, answer.value) == ("answers", "answer to q")
    assert asked == ["began", "ended", "answers"]


def test_first_is_none_when_nobody_answers() -> None:
    assert asyncio.run(make(First).ask(same, "q")) is None


def test_first_takes_a_false_answer_for_an_answer() -> None:
    def no(value: Any) -> bool:
        return False

    answer = asyncio.run(make(First, no).ask(same, "q"))
    assert answer.value is False


def test_a_failing_first_names_the_plugin() -> None:
    with pytest.raises(PluginError) as raised:
        asyncio.run(make(First, fail).ask(same, "q"))
    assert (raised.value.identity, raised.value.stage) == ("file:fail", "run")
    assert "hook raised ValueError: no" in str(raised.value)
    assert "second line" not in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError)


def unchanged(value: int) -> None: ...


# -- notify and the guards ------------------------------------------------------------------------


@pytest.mark.parametrize("caught", [fail, leave, panic])
def test_one_failing_observer_harms_no_other(caught: Callable[..., Any]) -> None:
    told: list[Any] = []
    hook = make(Notify, caught, told.append, failure="observe")
    for n in range(3):
        hook.tell(n)
    assert told == [0, 1, 2]


def test_an_interrupt_passes() -> None:
    for hook in (make(Notify, interrupt, failure="observe").tell, make(Collect, interrupt)):
        with pytest.raises(KeyboardInterrupt):
            hook(1)
    with pytest.raises(KeyboardInterrupt):
        make(First, interrupt).ask_now(same, 1)


def test_an_interrupt_that_no_signal_can_have_sent_is_a_failure() -> None:
    """As in the engine, which ignores the signal, and in a thread, which never gets it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        make(Notify, interrupt, failure="observe").tell(1)
    finally:
        signal.signal(signal.SIGINT, before)
    thread = threading.Thread(target=make(Notify, interrupt, failure="observe").tell, args=(1,))
    thread.start()
    thread.join()

    class Terminated(KeyboardInterrupt):
        """What a handler of the program's raises."""

    def terminate(value: Any) -> Any:
        raise Terminated

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(Terminated):
            make(Notify, terminate, failure="observe").tell(1)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_cancellation_passes_only_if_somebody_cancelled() -> None:
    make(Notify, cancel, failure="observe").tell(1)

    async def wait(value: Any) -> Any:
        await asyncio.Event().wait()

    async def told(hook: Any) -> None:
        await hook.run(1)

    async def run() -> None:
        await told(make(Notify, cancel, failure="observe"))
        task = asyncio.create_task(make(First, wait).ask(same, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_an_observer_is_logged_once_counted_and_switched_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    hook = make(Notify, fail, failure="observe")
    hook._clock = lambda: now[0]
    guard = hook.guards[0]
    for _ in range(4):
        hook.tell(1)
    now[0] = 61.0  # the first four are out of the window
    for _ in range(4):
        hook.tell(1)
    assert hook.guards == (guard,)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "file:fail failed in hook" in caplog.text
    hook.tell(1)
    assert hook.guards == ()
    assert hook.switched_off == (guard,)
    assert "file:fail: hook hook is switched off: 5 failures in 60 s" in caplog.messages[-1]
    hook.tell(1)
    assert guard.errors == 9


def test_every_call_counts_errors_and_one_in_64_is_timed() -> None:
    hook = make(Notify, unchanged, failure="observe")
    for _ in range(129):
        hook.tell(1)
    assert hook.guards[0].sampled == 2
    assert 0 < hook.guards[0].sampled_s < 1
    failing = make(Notify, fail, failure="logged")
    for _ in range(17):
        failing.tell(1)
    assert failing.guards[0].errors == 17


@pytest.mark.parametrize("is_of_a_loop", [True, False])
@pytest.mark.parametrize("num_before", [1, 63])
def test_the_one_observer_over_its_budget_is_found_at_the_call_that_showed_it(
    num_before: int, is_of_a_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []
    slow_at: list[float] = []

    def dawdles(value: Any) -> None:
        if slow_at:
            time.sleep(slow_at.pop())

    hook = make(
        Notify,
        told.append,
        dawdles,
        unchanged,
        failure="observe",
        budget_s=0.02,
        is_of_a_loop=is_of_a_loop,
    )
    for n in range(num_before):
        hook.tell(n)
    assert len(hook.guards) == 3
    slow_at.append(0.2)
    hook.tell("slow")
    assert [guard.plugin.name for guard in hook.guards] == ["append", "unchanged"]
    hook.tell("later")
    assert told == [*range(num_before), "slow", "later"]
    (off,) = hook.switched_off
    assert hook.calls_of(off) == num_before + 1
    assert [hook.calls_of(guard) for guard in hook.guards] == [num_before + 2] * 2
    assert re.search(
        r"file:dawdles: hook hook is switched off: one call took 0\.\d+ s; it has 0\.02 s",
        caplog.text,
    )


def test_a_hook_that_nobody_implements_does_nothing() -> None:
    hook = make(Notify, failure="observe")
    assert hook.guards == ()
    assert hook.tell(1) is None


def test_withdrawal_swaps_the_guards_and_a_call_in_progress_ends_as_it_began() -> None:
    told = []

    def first(value: Any) -> None:
        told.append("first")
        for guard in hook.guards:
            hook.withdraw(guard.plugin)

    def second(value: Any) -> None:
        told.append("second")

    hook = make(Notify, first, second, failure="observe")
    hook.tell(1)
    hook.tell(1)
    assert told == ["first", "second"]


def test_what_runs_knows_whose_it_is_and_the_outer_owner_comes_back() -> None:
    seen = []

    def inner(value: Any) -> None:
        seen.append(running())

    def outer(value: Any) -> None:
        nested.tell(1)
        seen.append(running())

    nested = make(Notify, inner, failure="observe")
    hook = make(Notify, outer, fail, failure="observe")
    for _ in range(16):  # the last one goes the timed way
        seen.clear()
        hook.tell(1)
        assert [owner.name for owner in seen] == ["inner", "outer"]
        assert running() is None


def test_an_exception_keeps_the_owner_of_the_innermost_code_that_it_left() -> None:
    error = ValueError("x")
    with pytest.raises(ValueError), enter(plugin("outer")), enter(plugin("inner")), enter(None):
        raise error
    assert owner_of(error) == "file:inner"
    assert owner_of(ValueError("x")) is None


def test_an_awaitable_where_nobody_can_wait_is_the_plugins_failure() -> None:
    async def waits(value: Any) -> None: ...

    hook = make(Notify, waits, failure="logged")
    hook.tell(1)  # and the coroutine is closed: a warning would be an error here
    assert hook.guards[0].errors == 1


# -- the typed methods ----------------------------------------------------------------------------


def test_request_finished_waits_for_coroutines_and_guards_them(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    class Waits:
        @hookimpl
        async def request_finished(self, record: Any, ctx: Any) -> None:
            await asyncio.sleep(0)
            told.append((record.request_id, ctx.identity, running().identity))  # type: ignore

    class Breaks:
        @hookimpl
        async def request_finished(self) -> None:
            await asyncio.sleep(0)
            sys.exit(4)

    host = make_host(Waits(), Breaks())
    asyncio.run(host.calls.request_finished(RECORD))
    assert told == [("r", "object:Waits", "object:Waits")]
    assert "object:Breaks failed in request_finished" in caplog.text
    reports = {report.identity: report.hooks[0] for report in host.describe()}
    assert (reports["object:Breaks"].errors, reports["object:Waits"].errors) == (1, 0)


def test_a_coroutine_that_never_ends_is_given_up(
    make_host: Any,
) -> None:
    class Hangs:
        @hookimpl
        async def request_finished(self) -> None:
            await asyncio.Event().wait()

    host = make_host(Hangs(), front_hook_timeout_s=0.01)
    asyncio.run(asyncio.wait_for(host.calls.request_finished(RECORD), 5))
    assert host.describe()[0].hooks[0].errors == 1


def test_a_plain_function_that_blocks_holds_up_nobody(make_host: Any) -> None:
    released = threading.Event()
    told: list[Any] = []

    class Blocks:
        @hookimpl
        def request_finished(self) -> None:
            told.append((released.wait(5), running().identity))  # type: ignore[union-attr]

    class Quick:
        @hookimpl
        async def request_finished(self) -> None:
            told.append("quick")
            released.set()  # only if the loop goes on meanwhile

    host = make_host(Blocks(), Quick())
    asyncio.run(host.calls.request_finished(RECORD))
    assert told == ["quick", (True, "object:Blocks")]


def test_a_plain_function_over_its_budget_is_left_behind_and_switched_off(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    class Hangs:
        @hookimpl
        def request_finished(self) -> None:
            released.wait(30)

    host = make_host(Hangs(), front_hook_timeout_s=0.05)
    for _ in range(2):
        asyncio.run(asyncio.wait_for(host.calls.request_finished(RECORD), 5))
    released.set()
    (report,) = host.describe()[0].hooks
    assert (report.errors, report.switched_off) == (1, True)
    assert "object:Hangs failed in request_finished" in caplog.text
    assert "TimeoutError: no end within 0.05 s" in caplog.text


def test_no_thread_stays_of_a_plugin_that_is_out_or_of_a_host_that_is_closed(
    make_host: Any,
) -> None:
    threads: list[threading.Thread] = []

    class Told:
        @hookimpl
        def request_finished(self) -> None:
            threads.append(threading.current_thread())

        @hookimpl
        def metric_labels(self) -> None:
            threads.append(threading.current_thread())

    class Other(Told): ...

    async def call(host: Host) -> None:
        await host.calls.request_finished(RECORD)
        await host.calls.metric_labels(None, None)  # type: ignore[arg-type]

    host = make_host(Told(), Other(), roles=["front"])
    asyncio.run(call(host))
    host.deny(Denied("object:Other", "worker", "run", "no"))
    gone = [thread for thread in threads if "object:Other" in thread.name]
    assert len(gone) == 2
    for thread in gone:
        thread.join(10)
        assert not thread.is_alive()
    assert sum(thread.is_alive() for thread in threads) == 2
    host.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_in_front_a_shutdown_that_hangs_is_left_behind(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    told = []

    class Hangs:
        @hookimpl
        def shutdown(self) -> None:
            released.wait(30)

    class Other:
        @hookimpl
        def shutdown(self) -> None:
            told.append(released.is_set())

    make_host(Hangs(), Other(), roles=["front"], front_hook_timeout_s=0.05).close()
    released.set()
    assert told == [False]
    assert "object:Hangs failed in shutdown: TimeoutError: no end within 0.05 s" in caplog.text


def test_arguments_come_by_name_in_any_order(make_host: Any) -> None:
    told = []

    class Swapped:
        @hookimpl
        def process_started(self, ctx: Any, config: Any, roles: Any) -> None:
            told.append((ctx.identity, config, roles))

    class Nothing:
        @hookimpl
        def process_started(self) -> None:
            told.append(())

    host = make_host(Swapped(), Nothing())
    host.calls.process_started(host.roles, "config")
    assert sorted(told) == [(), ("object:Swapped", "config", host.roles)]


def test_shutdown_goes_on_past_failures(make_host: Any, caplog: pytest.LogCaptureFixture) -> None:
    told = []

    class A:
        @hookimpl
        def shutdown(self, roles: Any) -> None:
            sys.exit(9)

    class B:
        @hookimpl
        def shutdown(self, roles: Any) -> None:
            told.append(roles)

    host = make_host(A(), B())
    host.close()
    host.close()
    assert told == [host.roles]
    assert "object:A failed in shutdown: SystemExit: 9" in caplog.text
