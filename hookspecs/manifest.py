"""``Manifest``: what one process made of the plugins, as plain data, and the comparison of two.

The parent acts on the comparison (deny and restart); sending it is ``engine``'s and ``server``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from .errors import PluginConflictError
from .plugin import OBJECT_GROUP, Plugin
from .settings import Denied

if TYPE_CHECKING:
    from .registry import Registry


class PluginEntry(msgspec.Struct, frozen=True):
    """One plugin: how far it came."""

    identity: str
    version: str | None
    state: str
    stage: str | None = None
    error: str | None = None


class NameEntry(msgspec.Struct, frozen=True):
    """One claim that was made at bootstrap, whether it won or lost: the winners follow from the
    claims and the settings."""

    name: str
    owner: str
    target: str


class Manifest(msgspec.Struct, frozen=True):
    """Plugins and registries of one process, in call order."""

    process: str
    roles: list[str]
    plugins: list[PluginEntry]
    registries: dict[str, list[NameEntry]]


def manifest_of(
    process: str,
    roles: Iterable[str],
    plugins: Iterable[Plugin],
    registries: Mapping[str, Registry],
) -> Manifest:
    """What came of the plugins in this process. What was registered late is left out, which other
    processes may not have, and so is what nobody opened."""
    return Manifest(
        process=process,
        roles=sorted(roles),
        plugins=[
            PluginEntry(plugin.identity, plugin.version, plugin.state, plugin.stage, plugin.error)
            for plugin in plugins
        ],
        registries={
            kind: [
                NameEntry(claim.name, claim.owner, claim.target_text())
                for claim in registry.all_claims()
                if not claim.late and claim.state != "closed"
            ]
            for kind, registry in registries.items()
        },
    )


def find_failures(parent: Manifest, child: Manifest) -> list[Denied]:
    """The plugins that failed in the child and not in the parent."""
    out = {plugin.identity for plugin in parent.plugins if plugin.state == "out"}
    return [
        Denied(plugin.identity, child.process, plugin.stage or "run", plugin.error or "unknown")
        for plugin in child.plugins
        if plugin.state == "out" and plugin.identity not in out
    ]


def compare_manifests(parent: Manifest, child: Manifest) -> list[Denied]:
    """As ``find_failures``, and all else must be the same.

    Registries are compared only if there is none: a failure explains what is missing.

    Raises:
        PluginConflictError: at a difference that no failure explains.
    """
    failed = find_failures(parent, child)
    if failed:
        return failed
    mine = {plugin.identity: plugin for plugin in parent.plugins}
    theirs = {plugin.identity: plugin for plugin in child.plugins}
    for identity in sorted(mine.keys() ^ theirs.keys()):
        # An object is handed over in one process only; what it declares is compared below.
        if not identity.startswith(f"{OBJECT_GROUP}:"):
            where, other = (parent, child) if identity in mine else (child, parent)
            raise PluginConflictError(
                f"plugin {identity} was found in the {where.process} process and not in the "
                f"{other.process} process; both must see the same installation"
            )
    for identity in sorted(mine.keys() & theirs.keys()):
        _compare_plugin(mine[identity], theirs[identity], parent, child)
    for kind in parent.registries.keys() & child.registries.keys():
        _compare_registry(kind, parent, child)
    return []


def _compare_plugin(
    mine: PluginEntry, theirs: PluginEntry, parent: Manifest, child: Manifest
) -> None:
    if mine.version != theirs.version:
        raise PluginConflictError(
            f"plugin {mine.identity} has version {mine.version} in the {parent.process} process "
            f"and {theirs.version} in the {child.process} process; start again after installing"
        )
    if mine.state == "out" and theirs.state == "active":
        raise PluginConflictError(
            f"plugin {mine.identity} is out in the {parent.process} process and active in the "
            f"{child.process} process"
        )


def _compare_registry(kind: str, parent: Manifest, child: Manifest) -> None:
    mine, theirs = parent.registries[kind], child.registries[kind]
    for left, right in zip(mine, theirs, strict=False):
        if left != right:
            raise PluginConflictError(
                f"{kind} differs between processes: {_held(left)} in the {parent.process} "
                f"process, {_held(right)} in the {child.process} process; a plugin must declare "
                "the same everywhere"
            )
    longer = parent if len(mine) > len(theirs) else child
    if len(mine) != len(theirs):
        extra = longer.registries[kind][min(len(mine), len(theirs))]
        raise PluginConflictError(
            f"{kind} differs between processes: {_held(extra)} only in the {longer.process} "
            "process; a plugin must declare the same everywhere"
        )


def _held(entry: NameEntry) -> str:
    return f"'{entry.name}' of {entry.owner} ({entry.target})"
