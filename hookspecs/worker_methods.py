"""``worker_method``: what a worker extension lets the engine's callers reach by ``collective_rpc``.

Which extensions a worker has, and how a method is called, is the engine's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_EXPORTED = "hookserve_worker_method"


def worker_method(function: F) -> F:
    """Export a method of a worker extension. It is called on the worker, in every worker at once.

    Raises:
        TypeError: for what is no plain function, and for a name that starts with an underscore.
    """
    plain = inspect.isfunction(function) and not inspect.iscoroutinefunction(function)
    if not plain or inspect.isasyncgenfunction(function):
        raise TypeError(f"worker_method: expected a plain function, got {function!r:.120}")
    if function.__name__.startswith("_"):
        raise TypeError(
            f"worker_method: {function.__qualname__} starts with an underscore, and "
            "collective_rpc calls public methods alone; give it another name"
        )
    setattr(function, _EXPORTED, True)
    return function


def is_worker_method(function: object) -> bool:
    """Whether it was marked, or is bound to what was."""
    return getattr(function, _EXPORTED, False) is True
