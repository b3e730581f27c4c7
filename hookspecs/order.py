"""The call order: third parties by identity, moved by ``before`` and ``after``; then built-ins.

The order is the same in every process and every run: it depends on nothing but the plugins that
are wanted and what their files say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .errors import PluginConflictError
from .plugin import Plugin
from .selection import matches


def call_order(plugins: Sequence[Plugin]) -> list[Plugin]:
    """The plugins in the order in which their hooks are called.

    Raises:
        PluginConflictError: at a cycle, or at a constraint between a third party and a built-in.
    """
    third = sorted(
        (plugin for plugin in plugins if not plugin.is_builtin),
        key=lambda plugin: plugin.call_key,
    )
    builtin = [plugin for plugin in plugins if plugin.is_builtin]
    ordered = [*_sorted_band(third, builtin), *_sorted_band(builtin, third)]
    assert len(ordered) == len(plugins)
    return ordered


def _sorted_band(band: Sequence[Plugin], other_band: Sequence[Plugin]) -> list[Plugin]:
    earlier: dict[Plugin, set[Plugin]] = {plugin: set() for plugin in band}
    for plugin in band:
        for entry in plugin.facts.before:
            for later in _others(entry, plugin, band, other_band):
                earlier[later].add(plugin)
        for entry in plugin.facts.after:
            earlier[plugin].update(_others(entry, plugin, band, other_band))
    ordered: list[Plugin] = []
    waiting = list(band)
    while waiting:
        free = next((plugin for plugin in waiting if earlier[plugin] <= set(ordered)), None)
        if free is None:
            names = ", ".join(plugin.identity for plugin in _circle(waiting, earlier))
            raise PluginConflictError(
                f"'before' and 'after' of these plugins form a circle: {names}; leave one out "
                "with --disable-plugins"
            )
        waiting.remove(free)
        ordered.append(free)
    return ordered


def _circle(waiting: Sequence[Plugin], earlier: Mapping[Plugin, set[Plugin]]) -> list[Plugin]:
    """Plugins that wait for one another; not those that merely wait for them."""
    path = [waiting[0]]
    while True:
        before = next(plugin for plugin in waiting if plugin in earlier[path[-1]])
        if before in path:
            return path[path.index(before) :]
        path.append(before)


def _others(
    entry: str, plugin: Plugin, band: Sequence[Plugin], other_band: Sequence[Plugin]
) -> list[Plugin]:
    """The plugins that a constraint means. One that is not installed constrains nothing."""
    for other in other_band:
        if matches(entry, other):
            raise PluginConflictError(
                f"{plugin.identity} wants to be called before or after {other.identity}, but "
                "third parties are always called before built-ins"
            )
    return [other for other in band if other is not plugin and matches(entry, other)]
