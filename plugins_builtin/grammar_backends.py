"""Built-in plugin: the backends of structured output. ``auto`` is the first one."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def grammar_backend() -> list[Named]:
    target = "hookserve.plugins_builtin.llguidance_backend:LLGuidanceBackend"
    return [Named("llguidance", target), Named("guidance", target)]
