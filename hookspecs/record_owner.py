"""Whose log record it is: of the plugin whose code runs, or whose package the logger is named for.

How records are written is the business of whoever has set up the log.
"""

from __future__ import annotations

import logging
from types import ModuleType

from .context import running
from .current_host import current
from .errors import HostError
from .plugin import Plugin


def owner_of_record(record: logging.LogRecord) -> str | None:
    """The plugin's identity; ``None`` for records of the program and of libraries, and while
    plugins are still being found. To be asked where the record was made."""
    plugin = running()
    if plugin is None or plugin.is_builtin:
        plugin = _named_for(record.name)
    return None if plugin is None else plugin.identity


def _named_for(logger: str) -> Plugin | None:
    """The third party whose module, or else whose top-level package, the logger is named for."""
    try:
        plugins = current().plugins
    except HostError:
        return None
    loaded = {_module(plugin): plugin for plugin in plugins if not plugin.is_builtin}
    loaded.pop(None, None)
    if logger in loaded:
        return loaded[logger]
    package = logger.partition(".")[0]
    return next(
        (own for module, own in loaded.items() if module and module.partition(".")[0] == package),
        None,
    )


def _module(plugin: Plugin) -> str | None:
    instance = plugin.instance
    if instance is None:
        return None
    if plugin.module is not None:
        return plugin.module
    return instance.__name__ if isinstance(instance, ModuleType) else type(instance).__module__
