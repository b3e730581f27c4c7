"""``answer_of``: the event loop asks a plugin in a thread, and waits for so long alone. What no
answer means for the request is the caller's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hookserve.hookspecs.plugin_thread import Outcome, PluginThread
from hookserve.hookspecs.plugin_threads import PluginThreads


class NoAnswerError(Exception):
    """None within the time; its cause is the ``TimeoutError`` that people are told of.

    Attributes:
        is_slow: what was asked takes too long; else it waited for what others asked.
    """

    def __init__(self, is_slow: bool) -> None:
        super().__init__("no answer within the time")
        self.is_slow = is_slow


async def answer_of(
    threads: PluginThread | PluginThreads, work: Callable[[], Any], budget_s: float
) -> Outcome:
    """
    Args:
        work: raises no ``TimeoutError`` of its own: what plugins raise is a ``PluginError``.

    Raises:
        NoAnswerError: ``work`` came to no end, or has not begun.
    """
    call = None
    try:
        async with asyncio.timeout(budget_s):
            call = threads.call(work)
            outcome = await asyncio.wrap_future(call)
    except TimeoutError as error:
        if call is None:
            raise NoAnswerError(False) from error
        if not call.done() or call.cancelled():
            raise NoAnswerError(threads.leave(call, budget_s)) from error
        outcome = call.result()  # ended in time: somebody else held the loop up
    if isinstance(outcome.error, TimeoutError):  # the thread's own: the call before it still runs
        raise NoAnswerError(False) from outcome.error
    return outcome
