"""Functions and iterators among the tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, ParamSpec, TypeVar

__all__ = ["collect_from_async_generator", "in_loop", "make_async", "merge_async_iterators"]

__surface__ = dict.fromkeys(__all__, "live: plugins call it")

P = ParamSpec("P")
T = TypeVar("T")


def make_async(func: Callable[P, T], executor: Executor | None = None) -> Callable[P, Awaitable[T]]:
    """The function, run in a thread of the executor."""

    def call(*args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(executor, partial(func, *args, **kwargs))

    return call


def in_loop(event_loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs in it."""
    try:
        return asyncio.get_running_loop() is event_loop
    except RuntimeError:
        return False


async def collect_from_async_generator(iterator: AsyncIterator[T]) -> list[T]:
    return [item async for item in iterator]


async def merge_async_iterators(*iterators: AsyncGenerator[T, None]) -> AsyncGenerator[Any, None]:
    """Items of all as they come, each with the number of its iterator; what one raises ends all."""
    tasks = {asyncio.ensure_future(anext(it)): (at, it) for at, it in enumerate(iterators)}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                at, it = tasks.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                tasks[asyncio.ensure_future(anext(it))] = (at, it)
                yield at, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for it in iterators:
            await it.aclose()
