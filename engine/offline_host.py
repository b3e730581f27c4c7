"""The plugin host of engines that are made in Python: opened by the first, shared, closed by the
last. Servers and their child processes make their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from hookserve.hookspecs import Host, HostError, PluginSettings, bootstrap, current
from hookserve.hookspecs.types import Role

from .environment import adapter_lists, default_cache_dir
from .errors import ConfigError
from .log import log_host


def open_host(
    roles: Iterable[Role],
    plugins: Sequence[Any],
    settings: PluginSettings | None,
    *,
    objects_stay: str | None = None,
) -> Host:
    """The host of this process, held once more; ``release`` it in the end.

    Args:
        roles: that the host must have; one that this process has may have more.
        plugins: names of modules and paths of ``.py`` files; objects and modules as well.
        settings: what else is wanted; nothing by default.
        objects_stay: why objects cannot be plugins here, for the sentence that refuses them;
            ``None``: they can.

    Raises:
        ConfigError: for an object where there can be none.
        HostError: plugins; or this process has a host that was made with other settings.
    """
    names = [os.fspath(each) for each in plugins if isinstance(each, str | os.PathLike)]
    objects = [each for each in plugins if not isinstance(each, str | os.PathLike)]
    if objects_stay is not None:
        check_no_objects(objects, objects_stay)
    host = bootstrap(_shared(roles), offline_settings(settings, names), objects=objects)
    if host.hold():
        log_host(host)
    return host


def _shared(roles: Iterable[Role]) -> frozenset[Role]:
    """The roles of the host that this process has, if it has those: one that could run an engine
    itself will do for who has the engine in another process."""
    wanted = frozenset(roles)
    try:
        held = current().roles
    except HostError:
        return wanted
    return held if wanted <= held else wanted


def offline_settings(
    settings: PluginSettings | None = None, names: Iterable[str] = ()
) -> PluginSettings:
    """What is wanted of plugins, completed by what a program leaves to the environment.

    Args:
        names: of modules, and paths of ``.py`` files, that are wanted too.
    """
    wanted = settings or PluginSettings()
    return msgspec.structs.replace(
        wanted,
        files=(*wanted.files, *map(str, names)),
        cache_dir=wanted.cache_dir or default_cache_dir(),
        adapter_lists=wanted.adapter_lists or adapter_lists(),
    )


def check_no_objects(objects: Sequence[object], why: str) -> None:
    """
    Raises:
        ConfigError: there is a plugin that is an object, and there can be none.
    """
    if objects:
        raise ConfigError(
            f"plugins: {type(objects[0]).__name__} is an object, and {why}; give the name of its "
            "module, or a .py file"
        )


@contextlib.contextmanager
def any_host() -> Iterator[Host]:
    """The host that this process has; without one, a host of the front for as long as it takes."""
    try:
        host = current()
    except HostError:
        host = bootstrap(["front"], PluginSettings(adapter_lists=adapter_lists()))
        try:
            yield host
        finally:
            host.close()
    else:
        yield host
