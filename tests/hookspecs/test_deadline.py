"""A coroutine gets its time and no more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from typing import Any

import pytest

from hookserve.hookspecs.deadline import OutOfTimeError, within


def test_what_ends_in_time_is_handed_on_as_it_is() -> None:
    async def give(value: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(value, BaseException):
            raise value
        return value

    async def run() -> None:
        assert await within(1.0, give(3), "a") == 3
        assert await within(math.inf, give(None), "a") is None
        for error in (SystemExit(3), TimeoutError("own"), asyncio.CancelledError(), ValueError()):
            with pytest.raises(type(error)) as caught:
                await within(1.0, give(error), "a")
            assert caught.value is error and not isinstance(error, OutOfTimeError)

    asyncio.run(run())


def test_what_swallows_its_cancellation_is_left_alone() -> None:
    num_cancelled, is_over = 0, asyncio.Event()

    async def stay() -> None:
        nonlocal num_cancelled
        while not is_over.is_set():
            try:
                await is_over.wait()
            except asyncio.CancelledError:
                num_cancelled += 1

    async def run() -> None:
        try:
            with pytest.raises(OutOfTimeError, match=r"no end within 0\.01 s"):
                await within(0.01, stay(), "the name")
            tasks = [t for t in asyncio.all_tasks() if t.get_name() == "the name"]
            assert num_cancelled == len(tasks) == 1 and not tasks[0].done()
        finally:
            is_over.set()
        await asyncio.wait_for(tasks[0], 1)

    asyncio.run(run())


def test_what_need_not_wait_is_as_good_as_a_call() -> None:
    """Nobody else has a turn meanwhile."""
    others: list[int] = []

    async def work() -> Any:
        return asyncio.current_task()

    async def run() -> None:
        asyncio.get_running_loop().call_soon(others.append, 1)
        assert await within(1.0, work(), "a") is asyncio.current_task()
        assert others == []

    asyncio.run(run())


def test_whoever_waits_may_be_cancelled_and_the_work_with_it() -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ends.append("cancelled")

    async def run() -> None:
        task = asyncio.create_task(within(60, work(), "a"))
        await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await asyncio.sleep(0)
        assert ends == ["cancelled"]

    asyncio.run(run())


def test_what_it_raises_too_late_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            raise ZeroDivisionError

    async def run() -> None:
        with pytest.raises(OutOfTimeError):
            await within(0.01, fail(), "a")
        await asyncio.sleep(0.01)

    asyncio.run(run())
    gc.collect()
    assert caplog.records == []
