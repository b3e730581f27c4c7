"""Start-up hooks that do not come to an end: nothing can interrupt them, but it is told whose one
is waited for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .plugin import Plugin

logger = logging.getLogger(__name__)


@contextmanager
def watched(plugin: Plugin, what: str, budget_s: float) -> Iterator[None]:
    """Log a warning if the block takes longer than the budget, while it still runs."""

    def tell() -> None:
        logger.warning("plugin %s: %s still runs after %g s", plugin.identity, what, budget_s)

    timer = threading.Timer(budget_s, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def watch(
    call: Callable[..., Any], plugin: Plugin, what: str, budget_s: float
) -> Callable[..., Any]:
    """The same call, watched."""

    def watched_call(*args: Any) -> Any:
        with watched(plugin, what, budget_s):
            return call(*args)

    return watched_call
