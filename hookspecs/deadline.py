"""``within``: a coroutine gets its time and no more, also where it swallows its cancellation.

It runs in the task of whoever waits for it, so that one that does not wait is as good as a call.
Only what does not end when it is cancelled goes on in a task of its own, and is left alone there.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_left: set[asyncio.Task[None]] = set()
"""An event loop alone would not keep them."""


class OutOfTimeError(TimeoutError):
    """The time is over; a ``TimeoutError`` of the coroutine's own is no such error."""


async def within(budget_s: float, work: Awaitable[Any], name: str) -> Any:
    """What ``work`` returns.

    Args:
        budget_s: seconds.
        name: of the task that goes on with it, for whoever finds that it does not end.

    Raises:
        OutOfTimeError: it has not ended by then. It was cancelled, and is not waited for.
        whatever ``work`` raises.
    """
    import asyncio  # the command line never waits, and should not pay for this

    budget = asyncio.timeout(budget_s)
    try:
        async with budget:
            return await _until_cancelled(work, name)
    except TimeoutError:
        if not budget.expired():
            raise
        raise OutOfTimeError(f"no end within {budget_s:g} s") from None


@types.coroutine
def _until_cancelled(work: Awaitable[Any], name: str) -> Generator[Any, Any, Any]:
    """As ``await work``. Where that goes on after its cancellation it is left, and the cancellation
    is raised all the same."""
    import asyncio

    steps = work.__await__()
    try:
        waits_for = next(steps)
        while True:
            try:
                yield waits_for
            except GeneratorExit:
                steps.close()
                raise
            except asyncio.CancelledError as error:
                waits_for = steps.throw(error)
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    _leave(steps, waits_for, name)
                    raise
            except BaseException as error:  # of what it waits for
                waits_for = steps.throw(error)
            else:
                waits_for = next(steps)
    except StopIteration as end:
        return end.value


def _leave(steps: Generator[Any, Any, Any], waits_for: Any, name: str) -> None:
    import asyncio

    task = asyncio.create_task(_finish(steps, waits_for), name=name)
    _left.add(task)
    task.add_done_callback(_left.discard)


async def _finish(steps: Generator[Any, Any, Any], waits_for: Any) -> None:
    with contextlib.suppress(BaseException):  # nobody asks any more what becomes of it
        await _go_on(steps, waits_for)


@types.coroutine
def _go_on(steps: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            yield waits_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            waits_for = steps.throw(error)
        else:
            waits_for = next(steps)
