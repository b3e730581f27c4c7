"""Patches that nothing calls: what a plugin put in the place of code that this server does not use.

Each process knows which of the functions it was given were called (``hookspecs.first_call``); what
none has called by the end of the first request is told once, by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from hookserve.hookspecs.report import ProcessReport

logger = logging.getLogger(__name__)

SHOWN = 8
"""So many names stand in one line."""


@dataclass
class DeadPatches:
    """Those of one plugin."""

    names: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    """Where it has patched."""


def dead_patches(reports: Iterable[ProcessReport]) -> dict[str, DeadPatches]:
    """By plugin, what was called in none of the processes that have the patch."""
    found: dict[str, DeadPatches] = {}
    live: set[tuple[str, str]] = set()
    for process in reports:
        for plugin in process.plugins:
            if not plugin.patches:
                continue
            dead = found.setdefault(plugin.identity, DeadPatches())
            dead.processes.append(process.process)
            uncalled = set(plugin.uncalled_patches)
            live |= {(plugin.identity, name) for name in plugin.patches if name not in uncalled}
            dead.names += [name for name in plugin.uncalled_patches if name not in dead.names]
    for identity, dead in found.items():
        dead.names = [name for name in dead.names if (identity, name) not in live]
    return {identity: dead for identity, dead in found.items() if dead.names}


def log_dead_patches(reports: Iterable[ProcessReport]) -> None:
    """Warn of each plugin that has some; of processes that do not answer nothing is known, and
    nobody is blamed."""
    known = list(reports)
    if any(process.problem is not None for process in known):
        return
    for identity, dead in dead_patches(known).items():
        more = f" and {len(dead.names) - SHOWN} more" if len(dead.names) > SHOWN else ""
        logger.warning(
            "plugin %s replaced %s%s, and nothing has called that by the end of the first request "
            "(in %s): it may be of no use here",
            identity,
            ", ".join(dead.names[:SHOWN]),
            more,
            ", ".join(dead.processes),
        )
