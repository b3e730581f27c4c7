"""What the host asks of this adapter (``hookserve.hookspecs.adapters.AdapterModule``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hookserve.hookspecs import Plugin, PluginSettings

from . import finder, selection
from .distributions import PACKAGE
from .groups import ADAPTER, make_plugins
from .misses import explain

__all__ = ["HOST_PACKAGES", "explain", "make_plugins", "prepare", "select"]

HOST_PACKAGES = (PACKAGE,)


def select(plugins: Sequence[Plugin], settings: PluginSettings, say: Callable[[str], None]) -> None:
    selection.select(plugins, settings, say)
    mine = [plugin for plugin in plugins if plugin.adapter == ADAPTER]
    if any(plugin.state == "found" for plugin in mine):
        for line in finder.install().present_to(mine):
            say(line)


def prepare() -> None:
    finder.install()
