"""``CurrentPlatform``: the platform of this process under the name that plugins import at the top
of their modules. Which one it is, is looked up where an attribute is asked for, so that an import
decides nothing.
"""

from __future__ import annotations

import traceback
from typing import Any

from hookserve.engine.offline_host import any_host
from hookserve.engine.platform import Platform
from hookserve.engine.platform_calls import import_platform, make_platform
from hookserve.hookspecs import HostError, PluginError, UnknownNameError, current, running
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.registry import Claim
from hookserve.hookspecs.targets import import_target

_OWN = frozenset({"_resolve", "_find", "_of_no_host", "_last", "_trace", "_alone"})


class CurrentPlatform:
    """What is read and written of it is read and written of the platform's object.

    Attributes:
        _trace: from where it was first looked up; empty: by nobody.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_trace", "")
        object.__setattr__(self, "_last", None)
        object.__setattr__(self, "_alone", None)

    def _resolve(self) -> Platform:
        found = self._find()
        if self._last is None:
            object.__setattr__(self, "_trace", "".join(traceback.format_stack()[:-2]))
        object.__setattr__(self, "_last", found)
        return found

    def _find(self) -> Platform:
        plugin = running()
        if plugin is not None and plugin.registrar is not None:
            return object_of(find_claim())
        try:
            host = current()
        except HostError:
            return self._of_no_host()
        return import_platform(host.platform(), host)

    def _of_no_host(self) -> Platform:
        """In a script without plugins of its own, found once."""
        made: Platform | None = self._alone
        if made is None:
            with any_host() as host:
                made = import_platform(host.platform(), host)
            object.__setattr__(self, "_alone", made)
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN:
            return object.__getattribute__(self, name)
        if name.startswith("__"):  # who looks through modules asks for no platform
            kind = Platform if self._last is None else type(self._last)
            return kind if name == "__class__" else getattr(kind, name)
        return getattr(self._resolve(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._resolve(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._resolve(), name)

    def __repr__(self) -> str:
        return repr(self._last) if self._last is not None else "<current_platform>"


def trace_of(platform: CurrentPlatform) -> str:
    """From where the platform was first looked up; empty: by nobody."""
    trace: str = object.__getattribute__(platform, "_trace")
    return trace


def find_claim() -> Claim:
    """The platform of this process, or the one that it would be by what is claimed so far.

    Raises:
        RuntimeError: no platform is loaded yet.
        hookserve.hookspecs.HostError: none, or several, can be it.
    """
    plugin = running()
    if plugin is None or plugin.registrar is None:
        with any_host() as host:
            return host.platform()
    try:
        return plugin.registrar.platform()
    except UnknownNameError as error:
        raise RuntimeError(
            f"current_platform is asked for while {plugin.identity} is imported, before the "
            f"platforms are: {error}; ask inside of a function, such as the one that the entry "
            "point names"
        ) from error


def object_of(claim: Claim) -> Platform:
    """The object of a platform that may not be decided for good yet; it stays.

    Raises:
        PluginError: it cannot be made.
    """
    if claim.made is None:
        try:
            with enter(claim.plugin):
                cls = import_target(claim.target)
        except caught() as error:
            said = f"platform '{claim.name}' raised {describe_error(error)}"
            raise PluginError(claim.owner, "import", said) from error
        return make_platform(claim, cls)
    made: Platform = claim.made
    return made
