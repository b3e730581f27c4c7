"""``contain``: what a plugin's own task raises ends that task alone.

``SystemExit`` and ``KeyboardInterrupt`` pass through a task into the event loop and stop it, and
with it the server. A plugin has tasks without making any: a streamed reply is sent from one.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from hookserve.hookspecs.context import running
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.plugin import Plugin

logger = logging.getLogger("hookserve.server.plugin_tasks")


class PluginExit(Exception):
    """Stands for an exception of a plugin that must not reach the event loop: its cause."""


@contextlib.contextmanager
def contain() -> Iterator[None]:
    """Within the block, tasks that are made by a plugin's code are contained. Must be entered on
    the event loop; a task factory that it has already goes on making the tasks."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    make_task: Callable[..., Any] = before or _make_task

    def make(loop: asyncio.AbstractEventLoop, work: Any, **kwargs: Any) -> Any:
        plugin = running()
        if plugin is not None and not plugin.is_builtin and inspect.iscoroutine(work):
            work = _contained(work, plugin)
        return make_task(loop, work, **kwargs)

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **kwargs: Any) -> asyncio.Task[Any]:
    return asyncio.Task(work, loop=loop, **kwargs)


async def _contained(work: Coroutine[Any, Any, Any], plugin: Plugin) -> Any:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # somebody cancelled it; its own may not look like that
        logger.error(
            "plugin %s: its task %s raised %r; the server goes on",
            plugin.identity,
            getattr(work, "__qualname__", "(unnamed)"),
            error,
        )
        raise PluginExit(describe_error(error)) from error
