"""What is about to go: since when, with which version, and what takes its place.

A test fails on an item whose version of removal has come. How long other points stay is
``stability``'s.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

import msgspec

from .context import enter, running
from .plugin import Plugin
from .stability import Kind, unstable
from .versions import release

logger = logging.getLogger(__name__)


class Deprecated(msgspec.Struct, frozen=True, kw_only=True):
    """One public point that will be removed.

    Args:
        name: as in the table of ``stability``.
        since: version of Hookserve that first warned.
        removal: version of Hookserve that no longer has it.
        instead: what to use, as the end of "use ...".
    """

    name: str
    kind: Kind
    since: str
    removal: str
    instead: str

    def text(self) -> str:
        return (
            f"the {self.kind} {self.name} is deprecated since {self.since} and goes in "
            f"{self.removal}; use {self.instead}"
        )


DEPRECATED: tuple[Deprecated, ...] = ()


def deprecated(kind: Kind, name: str) -> Deprecated | None:
    """The item with this name, if it is about to go."""
    return next((item for item in DEPRECATED if (item.kind, item.name) == (kind, name)), None)


def warn_deprecated(item: Deprecated) -> None:
    """Log that the item is used, once in a process for each plugin whose code does so."""
    owner = running()
    _tell(item.text() if owner is None else f"plugin {owner.identity}: {item.text()}")


def tell_of_tiers(plugin: Plugin) -> None:
    """Say which hooks of a plugin are about to go, and which may change in any release."""
    hooks = [implementation.info.name for implementation in plugin.implementations]
    with enter(plugin):
        for item in DEPRECATED:
            if item.kind == "hook" and item.name in hooks:
                warn_deprecated(item)
    unsteady = [] if plugin.is_builtin else unstable("hook", hooks)
    if unsteady:
        logger.info(
            "plugin %s implements %s: unstable, may change in any release",
            plugin.identity,
            ", ".join(unsteady),
        )


@functools.cache
def _tell(line: str) -> None:
    logger.warning("%s", line)


def past_removal(items: Iterable[Deprecated], version: str) -> list[Deprecated]:
    """The items that the version should no longer have.

    Raises:
        VersionRangeError: a version that cannot be read.
    """
    return [item for item in items if release(version) >= release(item.removal)]
