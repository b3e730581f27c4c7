"""What the entry points of a group name, for code that asks for it as it would ask vLLM.

The host has made plugins of them by then (``groups``), and chosen (``selection``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from hookserve.hookspecs import Plugin, current
from hookserve.hookspecs.discovery import installed_entry_points, read_metadata
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught

from .groups import ADAPTER, ENDPOINT

logger = logging.getLogger("vllm.plugins")


def load_group(group: str) -> dict[str, Any]:
    """The object of each entry point of the group by its name, in call order; of those that are
    chosen and can be imported, whatever the host thinks of the object. Of two with one name the
    later counts.

    Raises:
        hookserve.hookspecs.HostError: there is no plugin host in this process, or not yet.
    """
    entries = installed_entry_points(lambda each: each == group)[0].get(group, ())
    by_identity = {f"{read_metadata(e.dist)[0]}:{e.group}:{e.name}": e for e in entries}
    found = {}
    for plugin in current().plugins:
        entry = by_identity.get(plugin.identity)
        if entry is not None and _is_chosen(plugin):
            try:
                with current().enter(plugin):
                    found[entry.name] = entry.load()
            except caught() as error:
                logger.warning("plugin %s: %s", plugin.identity, describe_error(error))
    return found


def make_endpoints(supported_tasks: Iterable[str] | None) -> list[Any]:
    """An object of each endpoint plugin that one of the tasks is enough for."""
    tasks = None if supported_tasks is None else set(supported_tasks)
    made = [factory() for factory in load_group(ENDPOINT).values()]
    return [
        each
        for each in made
        if each.required_tasks is None or (tasks and not tasks.isdisjoint(each.required_tasks))
    ]


def _is_chosen(plugin: Plugin) -> bool:
    return plugin.adapter == ADAPTER and plugin.state in ("active", "other role", "out")
