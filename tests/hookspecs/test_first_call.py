"""A function that is looked at: its first call is noted, and it is what it was in every way."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import types
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from hookserve.hookspecs import first_call
from hookserve.hookspecs.first_call import code_of, watch_calls


def watched(value: Any) -> Any:
    found = watch_calls(value, lambda module: module.startswith("hookserve."))
    assert found is not None
    return found


def closure(n: int) -> Callable[..., Any]:
    def total(first: int, /, *more: int, times: int = 2, **named: int) -> int:
        """Adds."""
        return (first + sum(more) + sum(named.values())) * times + n

    return total


def test_a_call_is_noted_and_answered_as_ever() -> None:
    total = closure(100)
    code, signature = total.__code__, inspect.signature(total)
    seen = watched(total)
    assert not seen.called
    assert inspect.signature(total) == signature and total.__doc__ == "Adds."
    assert inspect.getsourcelines(total) == inspect.getsourcelines(code)
    assert total(1, 2, self=3, times=10) == 160
    assert seen.called and total.__code__ is code and not hasattr(total, "__signature__")
    assert total(1) == 102 and inspect.signature(total) == signature


def test_it_stays_the_same_object_wherever_it_is_held() -> None:
    class Holder:
        method = closure(0)
        made = staticmethod(closure(1))
        both = classmethod(lambda cls, n: (cls, n))
        size = property(lambda self: 7)

    for name, call, answer in (
        ("method", lambda: closure(0), None),
        ("made", lambda: Holder.made(1), 3),
        ("both", lambda: Holder().both(2), (Holder, 2)),
        ("size", lambda: Holder().size, 7),
    ):
        before = vars(Holder)[name]
        seen = watched(before)
        assert vars(Holder)[name] is before and not seen.called
        if answer is not None:
            assert call() == answer and seen.called


async def one(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


def some(n: int) -> Any:
    sent = yield n
    return sent


async def more(n: int) -> Any:
    try:
        yield n
        yield n + 1
    finally:
        closed.append(n)


async def echo() -> Any:
    said = None
    while True:
        try:
            said = yield said
        except ValueError as error:
            said = error


@types.coroutine
def steps(n: int) -> Any:
    yield
    return n


closed: list[int] = []


def test_coroutines_and_generators_keep_their_kind() -> None:
    seen = [watched(function) for function in (one, some, more, echo, steps)]
    assert inspect.iscoroutinefunction(one)
    assert inspect.isgeneratorfunction(some)
    assert inspect.isasyncgenfunction(more)

    async def all_of() -> list[int]:
        return [await one(1), *[n async for n in more(5)], await steps(4)]

    async def sent_and_thrown() -> list[Any]:
        talk, error = echo(), ValueError("x")
        found = [await anext(talk), await talk.asend("a"), await talk.athrow(error) is error]
        await talk.aclose()
        return found

    assert asyncio.run(all_of()) == [2, 5, 6, 4] and closed == [5]
    assert asyncio.run(sent_and_thrown()) == [None, "a", True]
    generator = some(3)
    assert next(generator) == 3
    with pytest.raises(StopIteration) as stopped:
        generator.send("x")
    assert stopped.value.value == "x"
    assert all(each.called for each in seen)


def test_an_async_generator_that_is_left_early_is_closed() -> None:
    async def slow(n: int) -> Any:
        try:
            while True:
                yield n
        finally:
            closed.append(n)

    watched(slow)

    async def take_one() -> None:
        found = slow(9)
        assert await anext(found) == 9
        await found.aclose()
        assert closed[-1] == 9

    asyncio.run(take_one())


def test_a_class_tells_by_a_constructor_of_its_own() -> None:
    class Own:
        def __init__(self, n: int) -> None:
            self.n = n

    seen = watched(Own)
    assert Own(3).n == 3 and seen.called
    assert watch_calls(type("None_", (Own,), {}), lambda module: False) is None


@pytest.mark.parametrize("value", [len, 3, object(), print])
def test_what_cannot_tell_is_left_alone(value: Any) -> None:
    assert watch_calls(value, lambda module: False) is None


def test_a_wrapper_of_the_hosts_code_is_not_taken_for_it() -> None:
    @functools.wraps(watch_calls)
    def wrapper(*args: Any) -> None:
        pass

    assert wrapper.__module__ == "hookserve.hookspecs.first_call"
    seen = watched(wrapper)
    wrapper()
    assert seen.called
    assert watch_calls(code_of, lambda module: module.startswith("hookserve.")) is None


def test_two_who_look_at_one_function_both_see_the_call() -> None:
    total = closure(0)
    code = total.__code__
    first, second = watched(total), watched(total)
    assert total.__code__ is not code and code_of(total) is code
    assert total(1) == 2
    assert first.called and second.called
    assert total.__code__ is code and code_of(total) is code
    third = watched(total)
    assert not third.called and total(1) == 2 and third.called


def test_threads_that_come_first_together_are_all_answered() -> None:
    def slow(n: int) -> int:
        return n

    seen = watched(slow)
    stand_in = FunctionType(slow.__code__, {})  # as a call that had begun before the code was back
    assert stand_in(7) == 7 and seen.called and slow(8) == 8
    assert stand_in(9) == 9 and not hasattr(slow, "__signature__")


def test_code_that_is_alone_in_another_process_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = closure(0)
    watched(total)
    monkeypatch.setattr(first_call, "_watched", {})  # as in a process that was sent the code
    with pytest.raises(RuntimeError, match=f"copied from process {os.getpid()} before its first"):
        total(1)


def test_what_stands_in_holds_nothing_that_a_compiler_of_functions_does_not_know() -> None:
    total = closure(0)
    watched(total)
    assert {type(each) for each in total.__code__.co_consts} <= {type(None), int, str, tuple}


def test_an_error_passes_with_its_own_traceback() -> None:
    def fails() -> None:
        raise KeyError("x")

    seen = watched(fails)
    with pytest.raises(KeyError):
        fails()
    assert seen.called
    with pytest.raises(KeyError):
        fails()
