"""Running a plugin's code from the engine: under its name, and what it raises told as its own."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import HookserveError

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin

logger = logging.getLogger(__name__)


@contextmanager
def telling_of_torch(what: str, owner: str) -> Iterator[None]:
    """One line says who made this process import torch, if the block did."""
    had_torch = "torch" in sys.modules
    start = time.monotonic()
    yield
    if not had_torch and "torch" in sys.modules:
        logger.info(
            "%s of %s imported torch into this process (%.1f s)",
            what,
            owner,
            time.monotonic() - start,
        )


@contextmanager
def as_plugin(host: Host, owner: Plugin | str | None, what: str = "") -> Iterator[None]:
    """Run a plugin's code as its own; what it raises is told under its name.

    Args:
        owner: the plugin or its identity; ``None``: of a class that the operator named by its
            path.
        what: the function that is called, for the message.

    Raises:
        hookserve.hookspecs.PluginError: the plugin raised, or wanted to end the process.
    """
    from hookserve.hookspecs import HostError, PluginError
    from hookserve.hookspecs.errors import describe_error
    from hookserve.hookspecs.notify_loop import caught

    try:
        with host.enter(owner):
            yield
    except (HookserveError, HostError):
        raise
    except caught() as error:
        said = describe_error(error)
        said = f"{what} raised {said}" if what else said
        name = owner if isinstance(owner, str) or owner is None else owner.identity
        raise PluginError(name or "(a class path)", "run", said) from error
