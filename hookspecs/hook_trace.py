"""``traced``: a hook implementation whose every call is logged, for ``--trace-hooks``.

What is not traced is not wrapped, so that it costs nothing. Which calls are made is ``hook``'s.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from time import perf_counter
from typing import Any

from .errors import describe_error
from .plugin import Plugin

logger = logging.getLogger(__name__)

SHOWN = 120
"""So much of a result stands in the log, characters."""


def is_traced(pattern: str | None, plugin: Plugin, hook: str) -> bool:
    """Whether the pattern (as of file names) fits the hook, or the plugin's name or identity."""
    if pattern is None:
        return False
    return any(fnmatchcase(text, pattern) for text in (hook, plugin.name, plugin.identity))


def traced(call: Callable[..., Any], plugin: Plugin, hook: str, process: str) -> Callable[..., Any]:
    """The same call, logged at INFO when it has ended; of a coroutine when that has."""

    def traced_call(*args: Any) -> Any:
        started = perf_counter()
        try:
            result = call(*args)
        except BaseException as error:
            tell(started, f"raised {describe_error(error)}")
            raise
        if inspect.isawaitable(result):
            return traced_wait(result, started)
        tell(started, f"returned {_summary(result)}")
        return result

    async def traced_wait(awaitable: Awaitable[Any], started: float) -> Any:
        try:
            result = await awaitable
        except BaseException as error:
            tell(started, f"raised {describe_error(error)}")
            raise
        tell(started, f"returned {_summary(result)}")
        return result

    def tell(started: float, what: str) -> None:
        elapsed_us = (perf_counter() - started) * 1e6
        logger.info(
            "trace %s pid %d: %s of %s took %.0f us, %s",
            process,
            os.getpid(),
            hook,
            plugin.identity,
            elapsed_us,
            what,
        )

    return traced_call


def _summary(result: Any) -> str:
    """The beginning of what a result says of itself, on one line."""
    try:
        text = " ".join(repr(result).split())
    except Exception as error:  # a plugin's own class may fail at telling what it is
        return f"a {type(result).__name__} that cannot be shown ({describe_error(error)})"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
