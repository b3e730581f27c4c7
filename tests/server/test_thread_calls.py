"""A plugin that is asked in a thread: what comes in time is an answer, and nothing else is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from hookserve.hookspecs.plugin_thread import Outcome, PluginThread
from hookserve.hookspecs.plugin_threads import PluginThreads
from hookserve.server.thread_calls import NoAnswerError, answer_of

Make = Callable[[str], PluginThread | PluginThreads]


@pytest.mark.parametrize("make", [PluginThread, PluginThreads])
def test_an_answer_is_one_also_where_others_held_the_loop_up(make: Make) -> None:
    threads, answered = make("plugin"), threading.Event()

    def work() -> int:
        answered.set()
        return 7

    async def hold_up() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.1
        assert answered.wait(20)
        while loop.time() < end or threads_are_busy():
            pass

    def threads_are_busy() -> bool:
        each = [threads] if isinstance(threads, PluginThread) else threads._threads
        return any(thread.num_calls for thread in each)

    async def run() -> None:
        asked = answer_of(threads, work, 0.05)
        outcome, held = await asyncio.gather(asked, hold_up(), return_exceptions=True)
        assert (outcome, held) == (Outcome(7, None), None)

    asyncio.run(run())
    threads.end()


def test_who_waits_behind_what_takes_too_long_is_not_slow() -> None:
    thread, begun, release = PluginThread("plugin"), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        release.wait()

    async def run() -> None:
        first = asyncio.create_task(answer_of(thread, hang, 0.2))
        await asyncio.to_thread(begun.wait)
        second = asyncio.create_task(answer_of(thread, int, 20))
        for task, is_slow in ((first, True), (second, False)):
            with pytest.raises(NoAnswerError) as caught:
                await task
            assert caught.value.is_slow is is_slow
        with pytest.raises(NoAnswerError) as caught:
            await answer_of(thread, int, 20)
        assert caught.value.is_slow is False

    try:
        asyncio.run(run())
    finally:
        release.set()
        thread.end()
