"""Entries such as ``name``, ``dist/name``, ``group:name``, ``dist:group:name``: which plugins
they mean, and what the allow and deny lists do to each plugin before anything is imported.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .errors import PluginSelectionError, did_you_mean
from .plugin import Plugin
from .settings import PluginSettings


def canonical(distribution: str) -> str:
    """A distribution's name in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def matches(entry: str, plugin: Plugin) -> bool:
    """Whether the (trimmed) entry means the plugin."""
    if entry == plugin.identity:
        return True
    parts = entry.split(":")
    if len(parts) == 3:
        distribution, group, name = parts
        return _is_from(plugin, distribution) and (plugin.group, plugin.name) == (group, name)
    if len(parts) == 2:
        return (plugin.group, plugin.name) == (parts[0], parts[1])
    if "/" in entry:
        distribution, _, name = entry.partition("/")
        return _is_from(plugin, distribution) and plugin.name == name
    return plugin.name == entry


def _is_from(plugin: Plugin, distribution: str) -> bool:
    return plugin.distribution is not None and canonical(distribution) == plugin.distribution


def select(entry: str, plugins: Sequence[Plugin], flag: str) -> Plugin:
    """The one plugin that the entry means.

    Raises:
        PluginSelectionError: if it means none (with the nearest) or more than one (with all).
    """
    entry = entry.strip()
    found = [plugin for plugin in plugins if matches(entry, plugin)]
    if len(found) == 1:
        return found[0]
    if found:
        both = " and ".join(f"{plugin.identity} ({plugin.file})" for plugin in found)
        raise PluginSelectionError(
            f"{flag}: '{entry}' fits {both}; write one of them as dist/name or dist:group:name"
        )
    of_distribution = [plugin for plugin in plugins if _is_from(plugin, entry)]
    if of_distribution:
        entries = ", ".join(f"{canonical(entry)}/{plugin.name}" for plugin in of_distribution)
        raise PluginSelectionError(f"{flag}: '{entry}' is a distribution; its plugins: {entries}")
    spellings = {plugin.name for plugin in plugins} | {plugin.identity for plugin in plugins}
    known = sorted(spellings if ":" in entry else {plugin.name for plugin in plugins})
    raise PluginSelectionError(f"{flag}: no plugin is called '{entry}'{did_you_mean(entry, known)}")


def select_all(entries: Iterable[str], plugins: Sequence[Plugin], flag: str) -> list[Plugin]:
    """The plugins that the entries mean; blank entries mean nothing."""
    return [select(entry, plugins, flag) for entry in entries if entry.strip()]


def apply_settings(plugins: Sequence[Plugin], settings: PluginSettings) -> None:
    """Block what the operator does not want, mark what must work, hand out configuration.

    Raises:
        PluginSelectionError: at an entry that fits no plugin or several, or at contradictions.
    """
    third = [plugin for plugin in plugins if not plugin.is_builtin]
    installed = [plugin for plugin in third if not plugin.is_explicit and not plugin.adapter]
    denied = select_all(settings.deny, plugins, "--disable-plugins")
    for plugin in denied:
        if plugin.facts.essential:
            raise PluginSelectionError(
                f"--disable-plugins: {plugin.identity} is essential and cannot be disabled"
            )
        plugin.block("--disable-plugins")
    if settings.allow is not None:
        _check_third_parties(settings.allow, plugins)
        allowed = select_all(settings.allow, third, "--plugins")
        for plugin in installed:
            if plugin not in allowed and plugin.state == "found":
                plugin.block("--plugins")
    if settings.no_plugins:
        _block_all(third)
    _require(plugins, settings)
    _configure(plugins, settings.config)
    _put_out(plugins, settings)


def _check_third_parties(entries: Iterable[str], plugins: Sequence[Plugin]) -> None:
    for entry in entries:
        fitting = [plugin for plugin in plugins if matches(entry.strip(), plugin)]
        if fitting and all(plugin.is_builtin for plugin in fitting):
            raise PluginSelectionError(
                f"--plugins: '{entry.strip()}' is built in, and --plugins speaks of third parties "
                "alone; a built-in plugin is there unless --disable-plugins names it"
            )


def _block_all(third: Sequence[Plugin]) -> None:
    for plugin in third:
        if plugin.is_explicit:
            raise PluginSelectionError(
                f"--no-plugins leaves the built-ins alone, and {plugin.identity} was asked for; "
                "use --plugins with an empty list to leave out what is installed"
            )
        if plugin.state == "found":
            plugin.block("--no-plugins")


def _require(plugins: Sequence[Plugin], settings: PluginSettings) -> None:
    for plugin in select_all(settings.require, plugins, "--require-plugins"):
        if plugin.state == "blocked":
            raise PluginSelectionError(
                f"--require-plugins: {plugin.identity} is blocked by {plugin.reason}; drop it "
                "from one of the two"
            )
        plugin.required = True


def _configure(plugins: Sequence[Plugin], config: Mapping[str, Any]) -> None:
    given: dict[Plugin, str] = {}
    for key, section in config.items():
        plugin = select(key, plugins, "--plugin-config")
        if plugin in given:
            raise PluginSelectionError(
                f"--plugin-config: '{given[plugin]}' and '{key}' both mean {plugin.identity}"
            )
        if not isinstance(section, Mapping):
            raise PluginSelectionError(
                f"--plugin-config: the section '{key}' must be an object of names and values"
            )
        given[plugin] = key
        plugin.config = copy.deepcopy(dict(section))  # ours goes on to other processes


def _put_out(plugins: Sequence[Plugin], settings: PluginSettings) -> None:
    by_identity = {plugin.identity: plugin for plugin in plugins}
    for denied in settings.denied:
        plugin = by_identity.get(denied.identity)
        if plugin is not None:
            plugin.fail(denied.stage, denied.error)
            plugin.reason = f"it failed in the {denied.process} process"
