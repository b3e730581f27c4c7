"""``Home``: where the loop of an engine or a worker notes whose code it runs, at each step.

Setting a context variable costs as much as a guarded call itself, so the thread of such a loop
keeps one cell for good and writes a plugin's number into it. Where a parent looks, the cell is the
``CrashMark`` itself. Any other thread uses a cell for each call, which is ``context``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from .crash_mark import CrashMark
from .plugin import Plugin


class Home:
    """One for each host. Gives the plugins their numbers, from 1.

    Attributes:
        slot: number of the plugin whose code runs; 0: the host's own.
    """

    __slots__ = ("_plugins", "slot")

    def __init__(self, plugins: Sequence[Plugin], mark: CrashMark | None = None) -> None:
        self._plugins = tuple(plugins)
        self.slot = memoryview(bytearray(2)).cast("H")
        for number, plugin in enumerate(plugins, 1):
            plugin.number = number
        if mark is not None:
            mark.name(plugins)
            self.slot = mark.slot
            for plugin in plugins:
                plugin.slot = mark.slot

    def running(self) -> Plugin | None:
        number = self.slot[0]
        return self._plugins[number - 1] if number else None
