"""``PluginClass``: a class that a plugin declared, or the operator named, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from hookserve.hookspecs import Plugin


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
