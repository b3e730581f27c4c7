"""``run_to_end``: the event loop of a program that ends even if a plugin's task or thread does not.

``asyncio.run`` waits for every task that it cancels, and Python for every thread; code that
swallows its cancellation, or sleeps in a thread, would keep a stopped server alive for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from hookserve.engine.errors import EX_SOFTWARE, HookserveError
from hookserve.engine.running_engine import ENGINE_THREAD

logger = logging.getLogger("hookserve.server.event_loop")

END_BUDGET_S = 1.0
"""For tasks and threads that are left when the work is done."""
CLEANUP_BUDGET_S = 20.0
"""For the work itself, if it was interrupted."""


class LoopStoppedError(HookserveError):
    """Something called ``sys.exit`` in a callback of the event loop, which stops the loop."""

    exit_code = EX_SOFTWARE


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """Run the work on an event loop of its own, and end what it leaves; its result.

    Raises:
        LoopStoppedError: the loop was stopped under it.
    """
    loop = asyncio.new_event_loop()
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(threads)
    main = loop.create_task(work)
    try:
        return loop.run_until_complete(main)
    except SystemExit as error:
        raise LoopStoppedError(
            f"a callback on the event loop called sys.exit({error.code!r}); the server stops"
        ) from error
    finally:
        _end_tasks(loop, CLEANUP_BUDGET_S if not main.done() else END_BUDGET_S)
        threads.shutdown(wait=False, cancel_futures=True)


def _end_tasks(loop: asyncio.AbstractEventLoop, budget_s: float) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=budget_s))
    stuck = [task for task in tasks if not task.done()]
    for task in stuck:
        logger.warning("%s did not end when cancelled; it is left behind", task.get_name())
    if not stuck:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def leave_if_stuck(code: int, besides: Collection[threading.Thread] = ()) -> None:
    """End the process at once with ``code`` if a thread, ``besides`` these, would keep it from
    ending by itself, or would be stopped by the interpreter in the middle of tensor code."""
    deadline = time.monotonic() + END_BUDGET_S
    own = threading.current_thread()
    threads = [
        each
        for each in threading.enumerate()
        if each is not own
        and each not in besides
        and (not each.daemon or each.name == ENGINE_THREAD)
    ]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    stuck = sorted({thread.name for thread in threads if thread.is_alive()})
    if stuck:
        logger.warning("these threads do not end and are left behind: %s", ", ".join(stuck))
        _leave(code)


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
