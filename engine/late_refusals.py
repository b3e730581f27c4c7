"""Plugins that fail when the processes have compared what they loaded: everything starts again
without them. Whoever started this process does that (``PluginsFailed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookserve.hookspecs import Host
from hookserve.hookspecs.errors import RequiredPluginError

from .errors import WorkerPluginsError


@contextmanager
def late_refusals(host: Host) -> Iterator[None]:
    """Within the block a plugin that must not fail may be put out.

    Raises:
        WorkerPluginsError: one was; what the block raised on top of that is its cause.
        RequiredPluginError: one that must work was.
    """
    before = {failure.identity for failure in host.failures()}
    cause: BaseException | None = None
    try:
        yield
    except RequiredPluginError:
        raise
    except Exception as error:
        cause = error
    failures = [each for each in host.failures() if each.identity not in before]
    if failures:
        raise WorkerPluginsError(failures) from cause
    if cause is not None:
        raise cause
