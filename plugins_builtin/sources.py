"""Built-in plugin: where models come from. A third party's sources are asked before these."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def model_source() -> tuple[Named, ...]:
    return (
        Named("local", "hookserve.engine.model_sources:LocalSource"),
        Named("pypi", "hookserve.engine.model_sources:PyPISource"),
        Named("hub", "hookserve.engine.model_sources:HubSource"),
    )
