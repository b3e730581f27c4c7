"""What the host asks of this adapter (``hookserve.hookspecs.adapters.AdapterModule``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint

from hookserve.hookspecs import Plugin, PluginSettings

from . import finder, groups, misses, selection

HOST_PACKAGES = ("vllm",)


def make_plugins(entries: Sequence[EntryPoint]) -> list[Plugin]:
    return groups.make_plugins(entries)


def select(plugins: Sequence[Plugin], settings: PluginSettings, say: Callable[[str], None]) -> None:
    selection.select(plugins, settings, say)
    mine = [plugin for plugin in plugins if plugin.adapter == groups.ADAPTER]
    if any(plugin.state == "found" for plugin in mine):
        for line in finder.install().present_to(mine):
            say(line)


def prepare() -> None:
    finder.install()


def explain(error: BaseException) -> str | None:
    return misses.explain(error)
