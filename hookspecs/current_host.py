"""``bootstrap``, ``current``: the one plugin host of this process, the only process-wide object;
and what it knows of patches, for code that has no host at hand.

What a host is, ``host`` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .context import running
from .crash_mark import CrashMark
from .errors import HostError, SettingsDifferError
from .host import Host
from .manager import PluginManager
from .op_names import canonical
from .registry import Claim
from .settings import PluginSettings
from .types import Role

_current: Host | None = None
_earlier: Host | None = None
"""What ``look_ahead`` made, until ``bootstrap`` takes over."""


def look_ahead(roles: Iterable[Role], settings: PluginSettings, only: Iterable[str]) -> Host:
    """A host for the sake of some hooks, before the one of this process can be made, because its
    settings are not complete without them.

    Raises:
        RequiredPluginError: if a plugin that must work failed.
        PluginConflictError: if the plugins cannot be ordered.
        PluginSelectionError: if the settings name plugins that are not there.
    """
    global _earlier
    _earlier = Host(roles, settings, only=only)
    return _earlier


def bootstrap(
    roles: Iterable[Role],
    settings: PluginSettings,
    *,
    objects: Sequence[object] = (),
    config: Any = None,
    crash_mark: CrashMark | None = None,
) -> Host:
    """Make the one host of this process: find, load and order plugins, collect declarations.

    Args:
        roles: every role of this process.
        settings: what the operator said.
        objects: plugins that are not installed, where all roles share this process.
        config: given: the hook ``process_started`` is called with it for all roles at once;
            not given: the caller does that when the configuration is there.
        crash_mark: where this process leaves word of whose code it runs, for its parent.

    Raises:
        SettingsDifferError: if this process has a host that was made otherwise.
        RequiredPluginError: if a plugin that must work failed.
        PluginConflictError: if two third parties claim one name.
        PluginSelectionError: if the settings name plugins that are not there.
    """
    global _current, _earlier
    if _current is not None:
        _check_same(_current, frozenset(roles), settings, tuple(objects))
        return _current
    host = Host(roles, settings, objects, earlier=_earlier, crash_mark=crash_mark)
    _earlier = None
    host.on_close = _forget
    _current = host
    if config is not None:
        try:
            host.calls.process_started(host.roles, config)
        except HostError:
            _forget(host)
            raise
    return host


def current() -> Host:
    """The host of this process.

    Raises:
        HostError: before ``bootstrap`` and after ``close``.
    """
    if _current is None:
        raise HostError("there is no plugin host in this process: call bootstrap first")
    return _current


def known_claims(kind: str) -> list[Claim]:
    """What has been claimed of a kind so far, by anyone: for a plugin's code while it runs at
    start-up, when nothing is decided yet, and for whoever asks later.

    Raises:
        HostError: before ``bootstrap`` and after ``close``, outside any plugin's code.
    """
    plugin = running()
    if plugin is not None and plugin.registrar is not None:
        return plugin.registrar.claims(kind)
    return current().known(kind)


def known_platform() -> Claim:
    """The platform of this process, or the one that it would be by what is claimed so far: for a
    plugin's code while it runs at start-up, and for whoever asks later.

    Raises:
        HostError: before ``bootstrap`` and after ``close``, outside any plugin's code; or none, or
            several, can be it.
    """
    plugin = running()
    if plugin is not None and plugin.registrar is not None:
        return plugin.registrar.platform()
    return current().platform()


def is_claimed(kind: str, name: str) -> bool:
    """Whether anyone has claimed a name of a kind so far. A plugin whose code asks, finds another
    third party's and does not register its own is reported as yielding to that.

    Raises:
        HostError: before ``bootstrap`` and after ``close``, outside any plugin's code.
    """
    plugin = running()
    if plugin is not None and plugin.registrar is not None:
        return plugin.registrar.is_claimed(kind, name)
    name = canonical(kind, name)
    return any(claim.name == name for claim in current().known(kind))


def describe_patch(name: str) -> str:
    """Who has replaced what, in words.

    Args:
        name: of an attribute of the host, as ``module:Class.attribute``.
    """
    plugins = () if _current is None else _current.plugins
    owners = [plugin.identity for plugin in plugins if name in plugin.patches]
    who = " and ".join(owners) or "code that is no plugin's"
    return f"{who} overrides {name.partition(':')[2]}"


def create_plugin_manager(
    roles: Iterable[Role],
    settings: PluginSettings | None = None,
    load: bool = True,
    objects: Sequence[object] = (),
) -> PluginManager:
    """A plugin manager for inspection, apart from the process's host: failures and conflicts are
    in its reports and stop nothing.

    Args:
        roles: as which process to look.
        settings: what the operator said; nothing by default.
        load: whether to import plugins; without it they are only discovered.
        objects: plugins that are not installed.

    Raises:
        PluginSelectionError: if the settings name plugins that are not there.
    """
    return Host(roles, settings or PluginSettings(), objects, load=load, strict=False).pm


def _forget(host: Host) -> None:
    global _current
    if _current is host:
        _current = None


def _check_same(
    host: Host, roles: frozenset[Role], settings: PluginSettings, objects: tuple[object, ...]
) -> None:
    differences = []
    if roles != host.roles:
        differences.append(f"roles {sorted(host.roles)} and {sorted(roles)}")
    for name in msgspec.structs.asdict(settings):
        first, second = getattr(host.settings, name), getattr(settings, name)
        if first != second:
            differences.append(f"{name} {first!r} and {second!r}")
    if [id(given) for given in objects] != [id(given) for given in host.objects]:
        differences.append("plugin objects")
    if differences:
        raise SettingsDifferError(
            "this process already has a plugin host, made with other settings: "
            f"{'; '.join(differences)}; close the first one before"
        )
