"""What the host asks of this adapter (``hookserve.hookspecs.adapters.AdapterModule``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint

from hookserve.hookspecs import Plugin, PluginSettings

from . import finder, groups

HOST_PACKAGES = ("vllm",)


def make_plugins(entries: Sequence[EntryPoint]) -> list[Plugin]:
    return groups.make_plugins(entries)


def select(plugins: Sequence[Plugin], settings: PluginSettings, say: Callable[[str], None]) -> None:
    del plugins, settings, say


def prepare() -> None:
    finder.install()


def explain(error: BaseException) -> str | None:
    del error
    return None
