"""Functions that are wrapped or looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

__all__ = ["identity", "run_once", "supports_kw"]

__surface__ = dict.fromkeys(__all__, "live: plugins call it")

P = ParamSpec("P")
T = TypeVar("T")


def identity(value: T, **kwargs: Any) -> T:
    del kwargs
    return value


def run_once(f: Callable[P, None]) -> Callable[P, None]:
    """Calls after the first do nothing."""
    lock, done = threading.Lock(), threading.Event()

    @wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        with lock:
            if done.is_set():
                return
            done.set()
        f(*args, **kwargs)

    return call


def supports_kw(
    callable: Callable[..., object],
    kw_name: str,
    *,
    requires_kw_only: bool = False,
    allow_var_kwargs: bool = True,
) -> bool:
    """Whether it can be called with an argument of this name."""
    parameters = signature(callable).parameters
    found = parameters.get(kw_name)
    if found is not None and found.kind is Parameter.KEYWORD_ONLY:
        return True
    if found is not None and found.kind is Parameter.POSITIONAL_OR_KEYWORD:
        return not requires_kw_only
    return allow_var_kwargs and any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
