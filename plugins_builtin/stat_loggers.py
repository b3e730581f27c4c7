"""Built-in plugin: the loggers of the engine's statistics, for people and for Prometheus."""

from __future__ import annotations

from hookserve.hookspecs import hookimpl


@hookimpl
def stat_logger() -> list[str]:
    return [
        "hookserve.plugins_builtin.logging_stat_logger:LoggingStatLogger",
        "hookserve.plugins_builtin.prometheus_stat_logger:PrometheusStatLogger",
    ]
