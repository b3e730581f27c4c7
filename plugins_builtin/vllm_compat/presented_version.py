"""``presented_version``: which release of vLLM the served package says that it is, and to whom.

Packages guard themselves by the releases that they know, and no one number satisfies all. So each
plugin is shown one of its own: the operator's word, else the newest release that its distribution's
requirement of ``vllm`` allows, else ``DEFAULT``, whose names are served.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from types import FrameType
from typing import Annotated

import msgspec

from hookserve.hookspecs import Plugin, running
from hookserve.hookspecs.discovery import required_ranges
from hookserve.hookspecs.plugin_config import convert_config
from hookserve.hookspecs.versions import VersionRangeError, in_range, release

from .distributions import PACKAGE

DEFAULT = "0.32.0"
_LAST_MINOR = 32
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")


class PluginSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``--plugin-config`` may say of a plugin that was written for vLLM."""

    presented_version: Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)*[A-Za-z0-9.+-]*$")] = ""
    """The release of vLLM that it is shown; empty: by its own requirement."""


class PresentedVersions:
    """Of the plugins that this process knows.

    Args:
        plugins: those that the adapter made.

    Raises:
        hookserve.hookspecs.HostError: the operator's section of one is none.
    """

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        for plugin in plugins:
            if plugin.config:
                convert_config(plugin, PluginSection)
        self._plugins = [plugin for plugin in plugins if plugin.distribution]
        self._packages: dict[str, list[Plugin]] | None = None
        self._versions: dict[Plugin, str] = {}

    def asked_now(self) -> str:
        """For the plugin that is nearest on the call stack, else the one whose code is running."""
        plugin = self._on_stack() or running()
        if plugin is None or plugin not in self._plugins:
            return DEFAULT
        if plugin not in self._versions:
            self._versions[plugin] = version_for(plugin)
        return self._versions[plugin]

    def _on_stack(self) -> Plugin | None:
        if self._packages is None:
            self._packages = self._packages_by_name()
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if name in self._packages:
                mine = self._packages[name]
                now = running()
                return now if now in mine else mine[0]
            frame = frame.f_back
        return None

    def _packages_by_name(self) -> dict[str, list[Plugin]]:
        found: dict[str, list[Plugin]] = {}
        for plugin in self._plugins:
            assert plugin.distribution is not None
            for name in set(_top_level_names(plugin.distribution)):
                found.setdefault(name, []).append(plugin)
        return found


def presented_version() -> str:
    """The release that whoever asks now is shown: what ``vllm.__version__`` is made of."""
    for finder in sys.meta_path:
        versions = getattr(finder, "versions", None)
        if isinstance(versions, PresentedVersions):
            return versions.asked_now()
    return DEFAULT


def version_for(plugin: Plugin) -> str:
    """The release that one plugin is shown."""
    said = plugin.config.get("presented_version")
    if isinstance(said, str) and said:
        return said
    return newest(_wanted_by(plugin)) or DEFAULT


def unmet_requirement(plugin: Plugin) -> str | None:
    """What to say of a plugin that asks for releases of which none is presented."""
    ranges = _wanted_by(plugin)
    if plugin.config.get("presented_version") or not ranges or newest(ranges):
        return None
    return (
        f"requires vllm {' or '.join(ranges)}, and the newest release whose names are served is "
        f"{DEFAULT}: it is shown that one; presented_version in its section of --plugin-config "
        "shows it another"
    )


def newest(ranges: Sequence[str]) -> str | None:
    """The newest release up to ``DEFAULT`` that satisfies all ranges, else the first one that can
    be satisfied; ``None``: there is none. What a range itself names is known to exist; of the
    others the first of each minor release."""
    for wanted in (",".join(ranges), *ranges):
        fitting = [each for each in _candidates(wanted) if _fits(each, wanted)]
        if fitting:
            return max(fitting, key=release)
    return None


def _candidates(wanted: str) -> Iterator[str]:
    yield DEFAULT
    yield from (f"0.{minor}.0" for minor in range(_LAST_MINOR))
    for named in _NUMBERS.findall(wanted):
        yield ".".join((*named.split("."), "0", "0")[: max(3, named.count(".") + 1)])


def _fits(version: str, wanted: str) -> bool:
    try:
        return release(version) <= release(DEFAULT) and in_range(version, wanted)
    except VersionRangeError:
        return False


def _wanted_by(plugin: Plugin) -> list[str]:
    try:
        requires = metadata.requires(plugin.distribution or "")
    except (metadata.PackageNotFoundError, ValueError):
        return []
    return [each for each in required_ranges(requires or [], PACKAGE) if each]


def _top_level_names(distribution: str) -> Iterator[str]:
    """Packages and modules that a distribution brings: what its entry points name, which an
    editable install has too, and what its record lists."""
    try:
        found = metadata.distribution(distribution)
    except (metadata.PackageNotFoundError, ValueError):
        return
    for entry in found.entry_points:
        yield entry.value.partition(":")[0].partition(".")[0].strip()
    try:
        files = found.files or ()
    except ValueError:  # a damaged record
        return
    for path in files:
        if path.suffix == ".py" and path.parts[0] not in ("..", PACKAGE):
            yield path.parts[0].removesuffix(".py")
