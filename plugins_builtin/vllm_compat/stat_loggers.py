"""The classes of the group ``vllm.stat_logger_plugins``: what an entry point must give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookserve.engine.stat_logger_base import StatLoggerBase

GROUP = "vllm.stat_logger_plugins"


def stat_logger_class(name: str, found: Any) -> type[StatLoggerBase]:
    """What the entry point ``name`` gave, if it is a logger's class.

    Raises:
        TypeError: it is not.
    """
    if isinstance(found, type) and issubclass(found, StatLoggerBase):
        return found
    raise TypeError(
        f"{GROUP}: {name!r} gives {found!r:.120}; expected a subclass of "
        "vllm.v1.metrics.loggers.StatLoggerBase"
    )


def stat_logger_classes(by_name: Mapping[str, Any]) -> list[type[StatLoggerBase]]:
    """Those of all entry points; raises as ``stat_logger_class``."""
    return [stat_logger_class(name, found) for name, found in by_name.items()]
