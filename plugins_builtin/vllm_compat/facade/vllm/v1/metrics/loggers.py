"""Loggers of the engine's statistics, and those that plugins add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookserve.engine.stat_logger_base import AggregateStatLoggerBase, StatLoggerBase
from hookserve.plugins_builtin.logging_stat_logger import LoggingStatLogger
from hookserve.plugins_builtin.vllm_compat.lazy import names_from
from hookserve.plugins_builtin.vllm_compat.stat_loggers import GROUP, stat_logger_classes

if TYPE_CHECKING:
    from hookserve.plugins_builtin.prometheus_stat_logger import PrometheusStatLogger

__all__ = [
    "AggregateStatLoggerBase",
    "LoggingStatLogger",
    "PrometheusStatLogger",
    "StatLoggerBase",
    "load_stat_logger_plugin_factories",
]

__surface__ = {
    "AggregateStatLoggerBase": "live: the front builds a subclass with the list of engines, which "
    "is [0]; record_admission_rejection is never called",
    "LoggingStatLogger": "live: writes the server's line of statistics; its private attributes "
    "are not vLLM's",
    "PrometheusStatLogger": "live: fills /metrics, under names that begin with hookserve_; a "
    "subclass takes its place; it has no _gauge_cls, _counter_cls and _histogram_cls",
    "StatLoggerBase": "live: the front builds a subclass for the engine and calls record, log and "
    "log_engine_initialized; record_sleep_state is never called: the engine does not sleep",
    "load_stat_logger_plugin_factories": "live: the classes of the group "
    "vllm.stat_logger_plugins; the server takes them from their plugins itself",
    "PerEngineStatLoggerAdapter": "refused: a server has one engine, and its logger is called "
    "directly; derive from StatLoggerBase",
    "StatLoggerManager": "refused: the front calls loggers one by one, each guarded alone; add one "
    "by the group vllm.stat_logger_plugins",
    "StatLoggerFactory": "refused: loggers come from entry points; derive from StatLoggerBase",
}


def load_stat_logger_plugin_factories() -> list[type[StatLoggerBase]]:
    """The loggers' classes of all entry points that ``VLLM_PLUGINS`` lets in.

    Raises:
        TypeError: one is no subclass of ``StatLoggerBase``.
    """
    from ...plugins import load_plugins_by_group

    return stat_logger_classes(load_plugins_by_group(GROUP))


__getattr__ = names_from(
    __name__, {"PrometheusStatLogger": "hookserve.plugins_builtin.prometheus_stat_logger"}
)
