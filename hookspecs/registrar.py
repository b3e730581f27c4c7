"""``Registrar``: what the host takes from plugin code that registers by itself, by calls instead of
answers, and what it shows such code.

The calls are ``self_registration``'s and the adapters'; who wins a name is ``registry``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .op_names import canonical

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
        tell: told the plugin and a line about it that an operator should know.
        platform: the platform of the process; before bootstrap ends, the one that it would be.

    Attributes:
        has_taken: whether there was a registration, also of a kind that is of no use here.
        yielded: the owner of each kind and name that the plugin asked for, found taken by another
            third party, and did not register.
    """

    __slots__ = ("_plugin", "_take", "_tell", "claims", "has_taken", "platform", "yielded")

    def __init__(
        self,
        plugin: Plugin,
        take: Callable[[Plugin, str, str, Any], None],
        claims: Callable[[str], list[Claim]],
        tell: Callable[[Plugin, str], None],
        platform: Callable[[], Claim],
    ) -> None:
        self._plugin = plugin
        self._take = take
        self._tell = tell
        self.claims = claims
        self.platform = platform
        self.has_taken = False
        self.yielded: dict[tuple[str, str], str] = {}

    def declare(self, kind: str, name: str, target: Any) -> None:
        """Take a registration. In a process that has no use for the kind, it is none.

        Raises:
            PluginError: the table was already read.
            PluginConflictError: after bootstrap: another third party claims the name.
        """
        self.yielded.pop((kind, canonical(kind, name)), None)
        self._take(self._plugin, kind, name, target)
        self.has_taken = True

    def is_claimed(self, kind: str, name: str) -> bool:
        """Whether anyone claims the name; who asks and leaves it to another third party yields."""
        name = canonical(kind, name)
        found = [claim.plugin for claim in self.claims(kind) if claim.name == name]
        other = next((each for each in found if not each.is_builtin), None)
        if other is not None and self._plugin not in found:
            self.yielded[kind, name] = other.identity
        return bool(found)

    def tell(self, line: str) -> None:
        """Have an operator know of it."""
        self._tell(self._plugin, line)
