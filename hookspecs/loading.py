"""Importing one plugin: load, instantiate, check; measured and guarded.

What a failure leads to is ``host``'s.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from .checks import RefusedError, Specs, implementations, unmarked_hooks
from .context import enter
from .errors import PluginError, describe_error
from .notify_loop import caught
from .plugin import Plugin
from .self_registration import declared_before
from .types import Role

_HEAVY = "torch"
_WITHOUT_HEAVY: frozenset[Role] = frozenset({"front", "cli", "inspector"})


def load_plugin(
    plugin: Plugin, specs: Specs, *, instances: dict[type, object], roles: Collection[Role]
) -> None:
    """Import the plugin and find its hooks; fills in the record.

    Args:
        instances: of every class that this host has met as a plugin; two ways to one class lead
            to one object.
        roles: of this process.

    Raises:
        PluginError: with the stage; the original exception is its cause.
    """
    if plugin.fault is not None:
        raise PluginError(plugin.identity, "discover", plugin.fault)
    started = time.perf_counter()
    try:
        with heavy_import(roles, plugin.warnings.append), enter(plugin):
            found = plugin.load()
            if inspect.isclass(found):
                if found not in instances:
                    instances[found] = found()
                found = instances[found]
    except caught() as error:
        raise PluginError(plugin.identity, "import", describe_error(error)) from error
    finally:
        plugin.load_ms = (time.perf_counter() - started) * 1e3
    if inspect.isroutine(found):
        raise PluginError(
            plugin.identity,
            "register",
            f"is the function {found.__qualname__}; expected a module, a class or an object with "
            "functions that are marked with @hookimpl",
        )
    _read_hooks(plugin, found, specs)
    plugin.instance = found
    plugin.warnings.extend(unmarked_hooks(found, specs))
    _compare_hooks(plugin)
    _compare_roles(plugin)


@contextmanager
def heavy_import(roles: Collection[Role], tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of an import of torch in a process of these roles that does without it; what it costs
    is measured over the whole block."""
    had, resident, started = _HEAVY in sys.modules, _resident_bytes(), time.perf_counter()
    yield
    if not had and _HEAVY in sys.modules and _WITHOUT_HEAVY.issuperset(roles):
        tell(
            f"imported {_HEAVY} in a process that does without it: "
            f"{time.perf_counter() - started:.1f} s, "
            f"{(_resident_bytes() - resident) / 2**20:.0f} MiB"
        )


def _read_hooks(plugin: Plugin, found: object, specs: Specs) -> None:
    try:
        with enter(plugin):
            plugin.implementations = implementations(
                found, specs, may_have_none=_registers_by_itself(plugin)
            )
    except RefusedError as error:
        raise PluginError(plugin.identity, "register", str(error)) from error
    except caught() as error:  # its own __dir__ or __getattr__, a signature that cannot be read
        message = f"its hooks cannot be read: {describe_error(error)}"
        raise PluginError(plugin.identity, "register", message) from error


def _registers_by_itself(plugin: Plugin) -> bool:
    """Whether its import registered something, now or for an earlier host of this process."""
    now = plugin.registrar is not None and plugin.registrar.has_taken
    return now or bool(declared_before(plugin.identity))


def _compare_hooks(plugin: Plugin) -> None:
    if plugin.facts.hooks is None:
        return
    said = set(plugin.facts.hooks)
    has = {implementation.info.name for implementation in plugin.implementations}
    if said != has:
        plugin.warnings.append(
            f"hookserve.toml names the hooks {sorted(said)}, the code has {sorted(has)}"
        )


def _compare_roles(plugin: Plugin) -> None:
    """Tell of hooks that nothing will ever call, since the plugin is never loaded there."""
    for implementation in plugin.implementations:
        info = implementation.info
        if not plugin.facts.roles & set(info.roles):
            plugin.warnings.append(
                f"hook {info.name} is never called: it runs in {', '.join(info.roles)}, and the "
                f"plugin is loaded in {', '.join(sorted(plugin.facts.roles))} (hookserve.toml: "
                "'roles')"
            )


def _resident_bytes() -> int:
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0  # no such file outside Linux; the line then says 0 MiB
    return int(pages) * 4096
