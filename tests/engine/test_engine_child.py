"""``EngineChild``: what is left of an engine process that somebody gave up."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading

from hookserve.engine.engine_child import EngineChild

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


def test_a_child_given_up_in_another_thread_leaves_the_loop_clean() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        child = EngineChild.start(SLEEPER)
        number = child.channel.fileno()
        waiting = asyncio.create_task(child.next_message())
        for _ in range(3):  # it waits in a task of its own
            await asyncio.sleep(0)
        # While the loop is busy, so that it has not seen the end by itself.
        giving_up = threading.Thread(target=child.abandon)
        giving_up.start()
        giving_up.join()
        await asyncio.sleep(0)
        with left, right, socket.socket(fileno=os.dup2(left.fileno(), number)):
            readable = asyncio.Event()
            loop.add_reader(number, readable.set)
            assert await waiting is None
            assert child.describe_end() == "was killed by SIGKILL"
            right.send(b"x")
            await asyncio.wait_for(readable.wait(), 10)
            loop.remove_reader(number)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_child_given_up_after_its_loop_ended_is_gone() -> None:
    async def start() -> EngineChild:
        return EngineChild.start(SLEEPER)

    child = asyncio.run(start())
    child.abandon()
    assert child.describe_end() == "was killed by SIGKILL"
