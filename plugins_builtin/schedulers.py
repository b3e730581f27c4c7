"""Built-in plugin: the scheduler that is taken where nobody names another."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def scheduler() -> Named:
    return Named("default", "hookserve.engine.scheduler:Scheduler")
