"""Built-in plugin: the executors that can drive the workers."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def executor() -> list[Named]:
    return [
        Named("uni", "hookserve.engine.executor:UniProcExecutor"),
        Named("mp", "hookserve.engine.multiproc_executor:MultiprocExecutor"),
    ]
