"""``PluginManager``: pluggy's manager with our specifications; for inspection and bookkeeping.

The host calls hooks through ``calls``, and only the host registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NoReturn, overload

import pluggy

from . import specs
from .checks import Specs
from .errors import HostError
from .markers import INFO_ATTRIBUTE, PROJECT, HookInfo
from .plugin import Plugin
from .report import PluginReport, ProcessReport


def read_specs(module: object) -> dict[str, HookInfo]:
    """Every specification of the module, by name, in its order."""
    marked = ((name, getattr(found, INFO_ATTRIBUTE, None)) for name, found in vars(module).items())
    return {name: info for name, info in marked if isinstance(info, HookInfo)}


class StandIn:
    """What pluggy is given of a plugin that says itself what it is equal to: pluggy compares
    plugins, and such an answer may be wrong for others, or raise.

    Attributes:
        plugin: the object itself; its hooks are attributes too.
    """

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin.instance
        for implementation in plugin.implementations:
            setattr(self, implementation.info.name, implementation.function)


class PluginManager(pluggy.PluginManager):
    """A ``pluggy.PluginManager`` that also knows what the host knows of each plugin."""

    def __init__(self, report: Callable[[], ProcessReport]) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(specs)
        self.specs: Specs = read_specs(specs)
        self.others: list[Callable[[], list[ProcessReport]]] = []
        """How to ask the processes behind this one; whoever starts some adds to it."""
        self._report = report

    @overload
    def describe(self, all_processes: Literal[False] = ...) -> list[PluginReport]: ...

    @overload
    def describe(self, all_processes: Literal[True]) -> list[ProcessReport]: ...

    def describe(self, all_processes: bool = False) -> list[PluginReport] | list[ProcessReport]:
        """A report about each plugin that was found, loaded or not, in call order.

        Args:
            all_processes: ask the engine and its workers too, and return one report for each
                process, this one first. It waits up to 2 s for an answer, and a process without one
                says why in its ``problem``.

        Raises:
            HostError: on the thread of the event loop that the answer would come by.
        """
        report = self._report()
        if not all_processes:
            return report.plugins
        return [report, *(other for ask in self.others for other in ask())]

    def adopt(self, plugin: Plugin) -> None:
        """Register a plugin that ``checks`` has accepted, under its identity."""
        own: Any = type(plugin.instance)
        is_plain = own.__eq__ is object.__eq__ and own.__ne__ is object.__ne__
        super().register(plugin.instance if is_plain else StandIn(plugin), plugin.identity)

    def register(self, plugin: object, name: str | None = None) -> NoReturn:
        """Refused: such a plugin would be listed and never called.

        Raises:
            HostError: always; objects are given to ``bootstrap``.
        """
        raise HostError(
            f"{name or plugin!r} cannot be registered by hand; give it to bootstrap(objects=[...])"
        )

    def load_setuptools_entrypoints(self, group: str, name: str | None = None) -> NoReturn:
        """Refused: it knows neither owners nor settings, and ends at the first import error.

        Raises:
            HostError: always; ``bootstrap`` loads entry points.
        """
        raise HostError(f"bootstrap loads the entry points of '{group}', and nothing else does")
