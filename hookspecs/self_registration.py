"""Registrations that a plugin's code makes by itself, a decorator for one, instead of answering a
hook: whose they are, and what a host of this process is still to be told of them.

Who wins a name is ``registry``'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .context import running
from .errors import PluginError

_at_import: dict[str, dict[tuple[str, str], Any]] = {}
"""What modules of each plugin registered while they were imported, by identity: a module runs once
in a process, and a process may have one host after another."""


@dataclass
class _Call:
    """What ``call_once`` has called."""

    function: Callable[[], Any]
    declared: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What it registered."""
    answer: Any = None


_at_call: dict[str, _Call] = {}
"""By the identity of the plugin."""


def declare(kind: str, name: str, target: Any) -> None:
    """Register a class, or the path of one, under a name, for the plugin whose code is running.

    Raises:
        PluginError: nobody's code is running, or the table was already read.
        PluginConflictError: another third party claims the name.
    """
    plugin = running()
    if plugin is None or plugin.registrar is None:
        raise PluginError(
            "(unknown)",
            "register",
            f"{kind} '{name}' was registered outside any plugin's code; expected a registration "
            "hook, or code that the host runs for a plugin",
        )
    plugin.registrar.declare(kind, name, target)
    if _is_at_import():
        _at_import.setdefault(plugin.identity, {})[kind, name] = target
    elif plugin.identity in _at_call:
        _at_call[plugin.identity].declared[kind, name] = target


def call_once(function: Callable[[], Any]) -> Any:
    """Call a function of the plugin whose code is running, which a host after the first one must
    not: what it did to the process is done. What it registered then is registered again.

    Returns: what it answered when it was called.
    """
    plugin = running()
    assert plugin is not None and plugin.registrar is not None, "no plugin's code is running"
    before = _at_call.get(plugin.identity)
    if before is not None and before.function is function:
        for (kind, name), target in before.declared.items():
            plugin.registrar.declare(kind, name, target)
        return before.answer
    call = _at_call[plugin.identity] = _Call(function)
    try:
        call.answer = function()
    except BaseException:
        forget_call(plugin.identity)  # what failed has left nothing
        raise
    return call.answer


def forget_call(identity: str) -> None:
    """What the plugin's function did has been undone: it may do it again."""
    _at_call.pop(identity, None)


def tell_operator(line: str) -> None:
    """Have an operator know of something about the plugin whose code is running; it stands in the
    plugin's report too."""
    plugin = running()
    assert plugin is not None and plugin.registrar is not None, "no plugin's code is running"
    plugin.registrar.tell(line)


def declared_before(identity: str) -> list[tuple[str, str, Any]]:
    """Kind, name and target of what was declared in this process by modules that are imported
    still, and will not be again."""
    return [
        (kind, name, target)
        for (kind, name), target in _at_import.get(identity, {}).items()
        if _is_current(target)
    ]


def _is_at_import() -> bool:
    """Whether the plugin's code that registers is the body of a module, which does not run again:
    what a function registers, it registers again when it is called again."""
    frame = sys._getframe(2)
    while not frame.f_globals.get("__name__", "").startswith(__package__ or ""):
        if frame.f_code.co_name == "<module>":
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _is_current(target: Any) -> bool:
    if isinstance(target, str):
        return True
    kept = target if hasattr(target, "__qualname__") else type(target)  # an object lives with it
    found: Any = sys.modules.get(kept.__module__)
    for part in kept.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kept
