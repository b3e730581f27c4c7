"""``within``: a coroutine gets its time and no more, also where it swallows its cancellation.

It runs in a task of its own, which is left alone once its time is over. What that leads to is the
caller's.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from .plugin_thread import Outcome

if TYPE_CHECKING:
    import asyncio


class OutOfTimeError(TimeoutError):
    """The time is over; a ``TimeoutError`` of the coroutine's own is no such error."""


async def within(budget_s: float, work: Awaitable[Any], name: str) -> Any:
    """What ``work`` returns.

    Args:
        budget_s: seconds.
        name: of its task, for whoever finds one that does not end.

    Raises:
        OutOfTimeError: it has not ended by then. It was cancelled, and is not waited for.
        whatever ``work`` raises.
    """
    import asyncio  # the command line never waits, and should not pay for this

    task = asyncio.create_task(_outcome_of(work), name=name)
    try:
        await asyncio.wait({task}, timeout=None if budget_s == math.inf else budget_s)
    except asyncio.CancelledError:
        _leave(task)
        raise
    if not task.done():
        _leave(task)
        raise OutOfTimeError(f"no end within {budget_s:g} s")
    return task.result().unwrap()


async def _outcome_of(work: Awaitable[Any]) -> Outcome:
    """A value, whatever it is: an exit must not reach the event loop."""
    try:
        return Outcome(await work, None)
    except BaseException as error:  # handed on
        return Outcome(None, error)


def _leave(task: asyncio.Task[Outcome]) -> None:
    task.cancel()
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Outcome]) -> None:
    """Nobody asks any more what became of it, which asyncio would complain of."""
    if not task.cancelled():
        task.exception()
