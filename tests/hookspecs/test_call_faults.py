"""Each way of calling x each exception x each policy: what happened, who was named, and that the
neighbours were called."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hookserve.hookspecs import PluginError, RequiredPluginError
from hookserve.hookspecs.coarse_clock import CoarseClock
from hookserve.hookspecs.guard import Guard
from hookserve.hookspecs.hook import Collect, First, Hook, Notify, Refuse
from hookserve.hookspecs.markers import HookInfo
from hookserve.hookspecs.plugin import Plugin


class Panic(BaseException):
    """As compiled libraries raise them."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Sealed(Exception):
    """Takes no attribute, and is equal to nothing, not even by ``bool``."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError("sealed")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError("tested")


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "Exception": lambda: ValueError("no"),
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(7),
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "TimeoutError": lambda: TimeoutError("its own"),
    "BaseException": lambda: Panic("index out of bounds"),
    "exception that has no text": Mute,
    "exception that refuses everything": Sealed,
}


def plugin(name: str) -> Plugin:
    return Plugin(identity=f"file:{name}", name=name, group="file", load=lambda: None)


def make(
    kind: type[Hook],
    *functions: Callable[..., Any],
    failure: str = "observe",
    budget_s: float = 5.0,
    refuse: Refuse | None = None,
    at_once: bool = False,
) -> Any:
    call = {Collect: "collect", First: "first", Notify: "notify", Hook: "pipeline"}[kind]
    facts: dict[str, Any] = {"call": call, "roles": ("front",), "failure": failure}
    guards = [
        Guard(
            plugin(each.__name__),
            each,
            is_coroutine=asyncio.iscoroutinefunction(each),
            at_once=at_once,
        )
        for each in functions
    ]
    info = HookInfo(name="hook", arguments=("value",), **facts)
    return kind(info, guards, refuse, budget_s=budget_s, coarse=CoarseClock(budget_s))


def same(value: Any) -> Any:
    return value


# -- the ways of calling: each returns the hook that was called ------------------------------------


def collect(broken: Any, good: Any, **options: Any) -> Hook:
    hook = make(Collect, broken, good, **options)
    assert [owned.value for owned in hook(1)] == ["good 1"]
    return hook  # type: ignore[no-any-return]


def ask_now(broken: Any, good: Any, **options: Any) -> Hook:
    hook = make(First, broken, good, **options)
    found = hook.ask_now(same, 1)
    assert (found.owner.name, found.value) == ("good", "good 1")
    return hook  # type: ignore[no-any-return]


def ask_in_thread(broken: Any, good: Any, **options: Any) -> Hook:
    hook = make(First, broken, good, **options)
    found = asyncio.run(hook.ask(same, 1))
    assert (found.owner.name, found.value) == ("good", "good 1")
    return hook  # type: ignore[no-any-return]


def ask_coroutine(broken: Any, good: Any, **options: Any) -> Hook:
    async def waits(value: Any) -> Any:
        await asyncio.sleep(0)
        return broken(value)

    waits.__name__ = broken.__name__
    return ask_in_thread(waits, good, **options)


def tell(broken: Any, good: Any, **options: Any) -> Hook:
    hook = make(Notify, broken, good, **options)
    hook.tell(1)
    return hook  # type: ignore[no-any-return]


def tell_within(broken: Any, good: Any, **options: Any) -> Hook:
    hook = make(Notify, broken, good, **options)
    hook.tell_within(1)
    return hook  # type: ignore[no-any-return]


def run(broken: Any, good: Any, **options: Any) -> Hook:
    hook = make(Notify, broken, good, **options)
    asyncio.run(hook.run(1))
    return hook  # type: ignore[no-any-return]


WAYS = [collect, ask_now, ask_in_thread, ask_coroutine, tell, tell_within, run]


@pytest.mark.parametrize("raised", EXCEPTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_plugin_raises_is_its_failure_and_no_neighbours(
    way: Callable[..., Hook], raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    called = []

    def broken(value: Any) -> Any:
        raise EXCEPTIONS[raised]()

    def good(value: Any) -> str:
        called.append(value)
        return f"good {value}"

    hook = way(broken, good)
    assert called == [1]
    counted = {guard.plugin.name: (guard.errors, hook.calls_of(guard)) for guard in hook.guards}
    assert counted == {"broken": (1, 1), "good": (0, 1)}
    assert "plugin file:broken failed in hook" in caplog.text
    assert hook.guards[0].last_error is not None
    assert hook.guards[1].last_error is None


# -- the policies ----------------------------------------------------------------------------------


def fail(value: Any) -> Any:
    raise ValueError("no")


def good(value: Any) -> str:
    return f"good {value}"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("observe", "plugin file:fail failed in hook; further failures are only counted"),
        (
            "default",
            "plugin file:fail failed in hook, and the default is kept; "
            "further failures are only counted",
        ),
        ("logged", "plugin file:fail failed in hook: ValueError: no"),
    ],
)
@pytest.mark.parametrize("way", [ask_now, ask_in_thread, tell, tell_within, run])
def test_what_can_be_done_without_is_logged(
    way: Callable[..., Hook], policy: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    way(fail, good, failure=policy)
    assert caplog.messages == [said]


@pytest.mark.parametrize("way", [ask_now, ask_in_thread, ask_coroutine])
def test_a_request_fails_by_the_name_of_the_plugin(way: Callable[..., Hook]) -> None:
    with pytest.raises(PluginError) as raised:
        way(fail, good, failure="request")
    assert raised.value.identity == "file:fail"
    assert raised.value.message == "hook hook raised ValueError: no"
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize(("way", "stage"), [(collect, "register"), (ask_now, "run"), (tell, "run")])
def test_who_is_refused_is_handed_over_with_its_error(way: Callable[..., Hook], stage: str) -> None:
    refused: list[Any] = []

    def refuse(owner: Plugin, info: HookInfo, at: str, error: BaseException) -> None:
        refused.append((owner.name, info.name, at, str(error)))

    way(fail, good, failure="refuse", refuse=refuse)
    assert refused == [("fail", "hook", stage, "no")]


@pytest.mark.parametrize("way", [collect, ask_now, tell])
def test_where_the_start_must_stop_it_stops(way: Callable[..., Hook]) -> None:
    def refuse(owner: Plugin, info: HookInfo, at: str, error: BaseException) -> None:
        raise RequiredPluginError(owner.identity, at, "no", "it is required") from error

    with pytest.raises(RequiredPluginError, match="it is required"):
        way(fail, good, failure="refuse", refuse=refuse)


def test_five_failures_in_a_minute_keep_the_default_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hook = make(First, fail, good, failure="default")
    for _ in range(6):
        assert hook.ask_now(same, 1).value == "good 1"
    assert [guard.plugin.name for guard in hook.switched_off] == ["fail"]
    assert hook.switched_off[0].errors == 5
    assert "plugin file:fail: hook hook is switched off: 5 failures in 60 s" in caplog.text


# -- answers ---------------------------------------------------------------------------------------


class Odd:
    """An answer that must not be asked anything."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError("tested")

    def __len__(self) -> int:
        raise RuntimeError("counted")

    def __repr__(self) -> str:
        raise RuntimeError("shown")


def test_an_answer_is_only_compared_with_none() -> None:
    odd = Odd()

    def answers(value: Any) -> Any:
        return odd

    assert make(Collect, answers)(odd)[0].value is odd
    assert make(First, answers).ask_now(same, odd).value is odd
    assert asyncio.run(make(First, answers).ask(same, odd)).value is odd
    hook = make(Notify, answers)
    for _ in range(16):
        hook.tell(odd)
    hook.tell_within(odd)
    asyncio.run(hook.run(odd))
    assert hook.guards[0].errors == 0


@pytest.mark.parametrize("way", [collect, ask_now, tell, tell_within])
def test_an_awaitable_where_the_caller_cannot_wait_is_closed_and_a_failure(
    way: Callable[..., Hook],
) -> None:
    async def later() -> None: ...

    made: list[Coroutine[Any, Any, None]] = []

    def waits(value: Any) -> Any:
        made.append(later())
        return made[-1]

    hook = way(waits, good)
    assert (
        hook.guards[0].last_error == "TypeError: hook hook cannot wait, and was given an awaitable"
    )
    assert made[0].cr_frame is None, "a coroutine that is never awaited is a warning"


def test_an_answer_of_another_type_is_the_plugins_failure() -> None:
    info = HookInfo(
        name="hook",
        arguments=("value",),
        call="pipeline",
        roles=("front",),
        failure="request",
        expects=(str, bytes),
    )

    def lies(value: Any) -> Any:
        return value

    hook = Hook(info, [Guard(plugin("lies"), lies)], budget_s=5.0)
    guard = hook.guards[0]

    class Pretends:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("asked what it is")

    for answer in ("text", b"bytes", None):
        assert hook.answer_now(guard, answer) is answer
        assert asyncio.run(hook.answer(guard, answer)) is answer
    for call in (hook.answer_now, lambda *args: asyncio.run(hook.answer(*args))):
        with pytest.raises(TypeError, match="hook returned a int; expected str, bytes or None"):
            call(guard, 7)
        with pytest.raises(RuntimeError, match="asked what it is"):
            call(guard, Pretends())


# -- the program's own exceptions pass -------------------------------------------------------------


def test_a_coroutine_that_is_closed_ends() -> None:
    async def waits(value: Any) -> None:
        await asyncio.get_running_loop().create_future()

    hook = make(First, waits, good, failure="request")

    async def main() -> None:
        asking = hook.ask(same, 1)

        async def begin() -> None:
            asking.send(None)
            asking.close()  # raises if the guard kept the exception and went on

        await begin()

    asyncio.run(main())
    gc.collect()
    assert [guard.errors for guard in hook.guards] == [0, 0]


# -- time ------------------------------------------------------------------------------------------


def test_a_function_that_holds_the_interpreter_is_found_too() -> None:
    """The coarse clock stands still meanwhile, and must be right when the function returns."""

    def holds(value: Any) -> None:
        if value == "now":
            sum(range(8_000_000))

    def quick(value: Any) -> None: ...

    hook = make(Notify, quick, holds, quick, budget_s=0.01)
    clocks = {each for each in threading.enumerate() if each.name == "hook clock"}
    for clock in clocks:  # of other tests: they would wait for the lock too
        clock.join(10)
    for _ in range(3):
        hook.tell("not yet")
    hook.tell("now")
    assert [guard.plugin.name for guard in hook.switched_off] == ["holds"]


def test_a_clock_that_stood_still_before_the_call_is_nobodys_fault() -> None:
    """As in a process that was stopped for a while."""

    def catches_up(value: Any) -> None:
        assert hook.coarse.look(1000.0, 0.01)

    hook = make(Notify, catches_up, good, budget_s=0.1)
    hook.tell("now")
    assert hook.switched_off == ()


@pytest.mark.parametrize("failure", ["observe", "default"])
def test_who_is_asked_in_the_loop_and_takes_too_long_is_not_asked_again(failure: str) -> None:
    def dawdles(value: Any) -> str:
        time.sleep(0.02)
        return "late"

    hook = make(First, dawdles, good, failure=failure, budget_s=0.005)
    assert hook.ask_now(same, 1).value == "late", "it is a valid answer all the same"
    assert hook.ask_now(same, 1).value == "good 1"
    assert [guard.plugin.name for guard in hook.switched_off] == ["dawdles"]


def test_a_coroutine_that_holds_the_event_loop_up_is_told_so() -> None:
    async def blocks(value: Any) -> str:
        time.sleep(0.03)
        return "late"

    hook = make(First, blocks, failure="request", budget_s=0.01)
    with pytest.raises(PluginError, match=r"file:blocks.*it took 0\.0 s; it has 0\.01 s"):
        asyncio.run(hook.ask(same, 1))


def test_what_a_plain_function_returns_has_the_same_deadline() -> None:
    async def later() -> str:
        await asyncio.Event().wait()
        return "never"

    def promises(value: Any) -> Any:
        return later()

    hook = make(First, promises, failure="request", budget_s=0.05)
    with pytest.raises(PluginError, match=r"file:promises.*TimeoutError: no end within 0\.05 s"):
        asyncio.run(hook.ask(same, 1))
    assert not hook.guards[0].thread.is_stuck


def test_a_function_that_ended_in_time_has_not_held_the_loop_up() -> None:
    ended = threading.Event()

    def innocent(value: Any) -> str:
        ended.set()
        return "in time"

    hook = make(First, innocent, failure="request", budget_s=0.2)

    async def main() -> Any:
        asking = asyncio.create_task(hook.ask(same, 1))
        await asyncio.sleep(0)  # it is on its way to its thread
        assert ended.wait(5)
        time.sleep(0.3)  # somebody else's fault
        return await asking

    assert asyncio.run(main()).value == "in time"


def test_behind_a_call_that_hangs_calls_fail_at_once_until_it_ends() -> None:
    goes_on = threading.Event()

    def hangs(value: Any) -> Any:
        if value == "hang":
            goes_on.wait(30)
        return f"answer to {value}"

    hook = make(First, hangs, failure="request", budget_s=0.1)

    async def main() -> None:
        hanging = asyncio.create_task(hook.ask(same, "hang"))
        await asyncio.sleep(0.05)
        behind = asyncio.create_task(hook.ask(same, "behind"))
        with pytest.raises(PluginError, match=r"TimeoutError: no end within 0\.1 s"):
            await hanging
        with pytest.raises(PluginError, match=r"given up .* s ago still runs"):
            await behind
        started = time.monotonic()
        with pytest.raises(PluginError, match=r"given up .* s ago still runs"):
            await hook.ask(same, "next")
        assert time.monotonic() - started < 0.09
        goes_on.set()
        while hook.guards[0].thread.is_stuck:
            await asyncio.sleep(0.001)
        assert (await hook.ask(same, "later")).value == "answer to later"

    asyncio.run(main())
    assert hook.guards[0].errors == 3


def test_a_call_that_has_no_turn_is_not_the_one_that_is_too_slow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Many calls at once of a function that is not slow: nobody is switched off."""

    def sleeps(value: Any) -> None:
        time.sleep(0.03)

    hook = make(Notify, sleeps, budget_s=0.2)

    async def main() -> None:
        await asyncio.gather(*[hook.run(n) for n in range(12)])

    asyncio.run(main())
    guard, *_ = (*hook.guards, *hook.switched_off)
    assert 0 < guard.errors < 12
    assert "no end within 0.2 s, since it waited for the calls before it" in caplog.text
    assert "one call took" not in caplog.text
