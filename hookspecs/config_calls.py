"""The hook before the engine is configured: who changes which argument, and who may.

Each plugin gets the arguments as those before it left them. Two that want different values of one
argument are a conflict, which the operator decides. What an argument may be is the engine's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import PluginConflictError
from .notify_loop import caught
from .plugin import Plugin

if TYPE_CHECKING:
    from .hook import Hook

AcceptFields = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class FieldChange(NamedTuple):
    """What a plugin wants an argument to be."""

    value: Any
    owner: Plugin


class ConfigCalls:
    """A typed method for the hook; a base of ``Calls``."""

    hooks: dict[str, Hook]

    def engine_config(
        self,
        config: Mapping[str, Any],
        *,
        accept: AcceptFields | None = None,
        prefer: Mapping[str, Plugin] = MappingProxyType({}),
    ) -> dict[str, FieldChange]:
        """The arguments that plugins set, also to what they were, with their owners.

        Args:
            config: every argument by name, plain data; a plugin that changes it changes a copy.
            accept: checks one plugin's answer and returns it converted; what it raises is the
                failure of that plugin.
            prefer: whose value an argument has that several plugins set.

        Raises:
            PluginConflictError: two plugins want different values, and nothing decides.
            RequiredPluginError: a plugin that must work failed.
        """
        hook = self.hooks["engine_config"]
        found: dict[str, FieldChange] = {}
        for guard in hook.guards:
            current = {**config, **{name: change.value for name, change in found.items()}}
            try:
                answer = hook.answer_now(guard, MappingProxyType(copy.deepcopy(current)))
                if answer is None:
                    continue
                if not isinstance(answer, Mapping):
                    raise TypeError(
                        f"engine_config returned a {type(answer).__name__}; expected the changed "
                        "fields by name, or None"
                    )
                changes = dict(answer) if accept is None else accept(answer)
            except caught() as error:
                hook.failed(guard, error)
                continue
            for name, value in changes.items():
                change = FieldChange(value, guard.plugin)
                found[name] = _settle(name, found.get(name), change, prefer.get(name))
        return found


def _settle(
    name: str, first: FieldChange | None, second: FieldChange, preferred: Plugin | None
) -> FieldChange:
    if first is None or second.owner is preferred:
        return second
    if first.owner is preferred or _is_same(first.value, second.value):
        return first
    left, right = first.owner, second.owner
    raise PluginConflictError(
        f"engine_config: '{name}' is set to {first.value!r:.120} by {left.identity} ({left.file}) "
        f"and to {second.value!r:.120} by {right.identity} ({right.file}); decide with --prefer "
        f"engine_config:{name}={left.identity} or --prefer engine_config:{name}={right.identity}, "
        "or leave one out with --disable-plugins"
    )


def _is_same(left: Any, right: Any) -> bool:
    """Equal, and of one type: True is not 1."""
    return type(left) is type(right) and bool(left == right)
