"""Each entry point of a ``vllm.*`` group as a plugin whose object implements the matching hooks.

Which of them are wanted is ``selection``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from hookserve.hookspecs import Plugin, hookimpl

ADAPTER = "vllm"
GENERAL = "vllm.general_plugins"


class GeneralPlugin:
    """A function that registers by calls, and what it is as a plugin."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    @hookimpl
    def register_by_call(self) -> None:
        self._function()


def make_plugins(entries: Sequence[EntryPoint]) -> list[Plugin]:
    """A plugin for each entry point."""
    return [_make(entry) for entry in entries if entry.group == GENERAL]


def _make(entry: EntryPoint) -> Plugin:
    distribution = None if entry.dist is None else entry.dist.name
    return Plugin(
        identity=f"{distribution}:{entry.group}:{entry.name}",
        name=entry.name,
        group=entry.group,
        load=lambda: GeneralPlugin(entry.load()),
        distribution=distribution,
        adapter=ADAPTER,
    )
