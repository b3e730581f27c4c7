"""``Registrar``: what the host takes from plugin code that registers by itself, by calls instead of
answers, and what it shows such code.

The calls are ``self_registration``'s and the adapters'; who wins a name is ``registry``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plugin import Plugin
    from .registry import Claim


class Registrar:
    """One for each plugin of a host.

    Args:
        plugin: whose registrations it takes.
        take: told the plugin, and kind, name and target of a registration.
        claims: what has been claimed of a kind so far, by anyone, in call order; before bootstrap
            ends, nothing is decided, and several may claim one name.
    """

    __slots__ = ("_plugin", "_take", "claims")

    def __init__(
        self,
        plugin: Plugin,
        take: Callable[[Plugin, str, str, Any], None],
        claims: Callable[[str], list[Claim]],
    ) -> None:
        self._plugin = plugin
        self._take = take
        self.claims = claims

    def declare(self, kind: str, name: str, target: Any) -> None:
        """Take a registration. In a process that has no use for the kind, it is none.

        Raises:
            PluginError: the table was already read.
            PluginConflictError: after bootstrap: another third party claims the name.
        """
        self._take(self._plugin, kind, name, target)
