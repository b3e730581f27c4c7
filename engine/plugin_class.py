"""``PluginClass``: a class that a plugin declared, or the operator named, and whose it is; and how
one is found."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hookserve.hookspecs.errors import PluginError

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin


@dataclass(frozen=True)
class PluginClass:
    """
    Attributes:
        noun: what such a class is called in messages.
    """

    noun: ClassVar[str]

    name: str
    plugin: Plugin | None
    """``None``: the operator named the class by its path."""
    cls: type[Any]

    @property
    def owner(self) -> str:
        return self.name if self.plugin is None else self.plugin.identity

    @property
    def label(self) -> str:
        """For a message."""
        of = "" if self.plugin is None else f" of plugin {self.plugin.identity}"
        return f"{self.noun} {self.name}{of}"


def find_class(
    host: Host, kind: str, name: str, base: type[Any]
) -> tuple[type[Any], Plugin | None]:
    """A class that can be made, and whose it is; ``None``: it was named by its path.

    Raises:
        UnknownNameError: nobody registered the name; with the nearest and with all that there are.
        hookserve.hookspecs.PluginError: it cannot be imported, or is no such class.
    """
    registry = host.registry(kind)
    found, claim = registry.resolve(name), registry.get(name)
    plugin = None if claim is None else claim.plugin
    if not (isinstance(found, type) and issubclass(found, base)):
        fault = f"{found!r:.120} is not a subclass of {base.__module__}.{base.__qualname__}"
    elif inspect.isabstract(found):
        lacks: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
        fault = f"{found.__qualname__} lacks {', '.join(sorted(lacks))}"
    else:
        return found, plugin
    owner = name if plugin is None else plugin.identity
    raise PluginError(owner, "register", f"{kind} '{name}': {fault}")
