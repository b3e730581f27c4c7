"""What the engine's processes take from the environment of the process that starts them.

Settings are not read here: for a server they are ``server.settings``', offline they are
arguments. This file knows the things that both need.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from .errors import ConfigError

VLLM_PLUGINS = "VLLM_PLUGINS"

_SPIN_COUNT = "20000"
# How often an OpenMP thread of libgomp looks for work before it sleeps. Its default keeps two
# threads on two cores spinning while the front waits for one: 0.9 of the tokens a second at 32
# streams, measured, and far less where something else runs. At 1000 a single stream loses 0.15.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
# Weights on pages of 2 MiB, where the kernel leaves that to programs ("madvise"): a step that
# reads all of them for one sequence takes 0.89 of the time, measured. Larger batches gain nothing.


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of an engine process: this one's, and where the operator said nothing
    about them how long OpenMP threads spin and which pages glibc takes.

    Args:
        environ: in place of the process' environment.
    """
    environment = dict(os.environ if environ is None else environ)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    environment.setdefault("GLIBC_TUNABLES", _HUGE_PAGES)
    return environment


def worker_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a worker process: an engine's, and the loopback interface for gloo,
    which knows no password and would else choose an interface by the machine's name.

    Args:
        environ: in place of the process' environment.
    """
    environment = child_environment(environ)
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    environment["GLOO_SOCKET_IFNAME"] = min(names, default="lo")
    return environment


def variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """What a variable of the ecosystem says, for plugins that ask for it by its name.

    Args:
        environ: in place of the process' environment.
    """
    return (os.environ if environ is None else environ).get(name)


def set_variable(name: str, value: str | None) -> None:
    """Set a variable of this process for a plugin that asks for it; ``None``: take it away."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def default_cache_dir(environ: Mapping[str, str] | None = None) -> str:
    """The folder for downloads where nobody named one: ``$HOOKSERVE_CACHE``, else
    ``$XDG_CACHE_HOME/hookserve``.

    Raises:
        ConfigError: there is no home folder that it could be in.
    """
    env = os.environ if environ is None else environ
    if env.get("HOOKSERVE_CACHE"):
        return in_home(env["HOOKSERVE_CACHE"])
    return os.path.join(in_home(env.get("XDG_CACHE_HOME") or "~/.cache"), "hookserve")


def adapter_lists(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the environment says in other hosts' own lists of plugins, by the adapter that reads
    it, as it was written: an empty list is not the same as none
    (``hookserve.hookspecs.PluginSettings``)."""
    env = os.environ if environ is None else environ
    return {"vllm": env[VLLM_PLUGINS]} if VLLM_PLUGINS in env else {}


def in_home(path: str) -> str:
    """The path with a home folder for its ``~``, which a shell does not always put in.

    Raises:
        ConfigError: this user has none; a folder called ``~`` would be made where we are.
    """
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise ConfigError(
            f"the cache folder {path!r} is in a home folder, and this user has none; set HOME, or "
            "name another folder with --download-dir or HOOKSERVE_CACHE"
        )
    return found
