"""Built-in plugin: the scheduler that is taken where nobody names another."""

from __future__ import annotations

import sys
from typing import Any

from hookserve.hookspecs import Named, hookimpl

_OTHER_FORMS = {
    "vllm.v1.core.sched.async_scheduler": "AsyncScheduler",
    "vllm.v1.core.sched.scheduler": "Scheduler",
}
"""Served modules that have the same scheduler in another form: a plugin that imported one of them
may have replaced parts of its class, which are to act."""


@hookimpl
def scheduler() -> Named:
    return Named("default", f"{__name__}:Default")


def __getattr__(name: str) -> Any:
    """``Default`` is looked up by the engine, after plugins have run."""
    if name != "Default":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module, form in _OTHER_FORMS.items():
        found = sys.modules.get(module)
        if hasattr(found, "__surface__"):
            return getattr(found, form)
    from hookserve.engine.scheduler import Scheduler

    return Scheduler
