"""Whose code is running, and what each plugin is given: ``enter``, ``running``, ``PluginContext``.

The context variable is set whenever the host enters a plugin's code, so that a registration made
there late can be attributed. Who enters is ``hook``'s, ``registry``'s and ``host``'s business.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from .errors import explain_error
from .patch_owners import raised_in
from .plugin import Plugin
from .types import Role

# A one-element list, so that a loop over many plugins sets only the element: setting a context
# variable costs several times a guarded call.
RUNNING: ContextVar[list[Plugin | None] | None] = ContextVar("hookserve_running", default=None)

_OWNER = "hookserve_owner"


def keep_cell() -> None:
    """Give this thread a cell for good, so that no loop in it has to make one. Only for a thread
    whose context nobody copies: two threads with one cell would mistake their plugins."""
    if RUNNING.get() is None:
        RUNNING.set([None])


def running() -> Plugin | None:
    """The plugin whose code runs here, or ``None`` in the host's own code."""
    cell = RUNNING.get()
    return None if cell is None else cell[0]


def owner_of(error: BaseException) -> str | None:
    """Identity of the plugin whose code raised: of several that it passed, the innermost."""
    owner = getattr(error, _OWNER, None)
    return owner if isinstance(owner, str) else None


class enter:
    """Attribute what happens inside to the plugin, and what leaves it by an exception too. A
    class, since ``contextmanager`` would cost several times the guarded call."""

    __slots__ = ("_outer", "_plugin", "_token")

    def __init__(self, plugin: Plugin | None) -> None:
        self._plugin = plugin

    def __enter__(self) -> None:
        plugin = self._plugin
        if plugin is not None and plugin.slot is not None:
            outer = running()  # not the slot's number: another thread may have written that
            self._outer = 0 if outer is None else outer.number
            plugin.slot[0] = plugin.number
        self._token = RUNNING.set([plugin])

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        RUNNING.reset(self._token)
        if self._plugin is not None and self._plugin.slot is not None:
            self._plugin.slot[0] = self._outer
        if error is not None and self._plugin is not None and owner_of(error) is None:
            explain_error(error, self._plugin.explain)
            with contextlib.suppress(Exception):  # an exception may refuse attributes
                setattr(error, _OWNER, raised_in(error) or self._plugin.identity)


class LastHandler(logging.StreamHandler[Any]):
    """Writes to stderr only while nobody else has configured the ``hookserve`` loggers, so that a
    plugin's lines are never lost and never doubled."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger("hookserve").hasHandlers():
            super().emit(record)


class _Signed(logging.Filter):
    """Lets all pass, with the plugin's identity as ``record.plugin``."""

    def __init__(self, identity: str) -> None:
        super().__init__()
        self._identity = identity

    def filter(self, record: logging.LogRecord) -> bool:
        record.plugin = self._identity
        return True


def plugin_logger(identity: str) -> logging.Logger:
    """The plugin's logger, ``hookserve.plugin.<identity>``, with a handler of last resort."""
    logger = logging.getLogger(f"hookserve.plugin.{identity.replace('.', '_')}")
    if not any(isinstance(each, _Signed) for each in logger.filters):
        logger.addFilter(_Signed(identity))
    if not any(isinstance(handler, LastHandler) for handler in logger.handlers):
        handler = LastHandler()
        handler.setFormatter(logging.Formatter(f"%(levelname)s [{identity}] %(message)s"))
        logger.addHandler(handler)
    return logger


class PluginContext:
    """What a plugin knows about itself; offered to every hook as ``ctx``.

    Attributes:
        identity: ``distribution:group:name``.
        roles: the roles of this process.
        config: the plugin's own section of ``--plugin-config``, as an instance of what its
            ``settings_schema`` states; without a schema a mapping, empty if there is no section.
        logger: a logger with a handler.
        stash: a dictionary of the plugin's own, one in each process.
    """

    __slots__ = ("_cache_root", "config", "identity", "logger", "roles", "stash")

    def __init__(
        self,
        identity: str,
        roles: frozenset[Role],
        config: Mapping[str, Any],
        cache_root: Path,
    ) -> None:
        self.identity = identity
        self.roles = roles
        self.config: Any = config
        self.logger = plugin_logger(identity)
        self.stash: dict[str, Any] = {}
        self._cache_root = cache_root

    @property
    def cache_dir(self) -> Path:
        """A folder of the plugin's own that outlives the process; made at the first use."""
        folder = self._cache_root / "plugins" / re.sub(r"[^A-Za-z0-9._-]+", "--", self.identity)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def __repr__(self) -> str:
        return f"PluginContext({self.identity!r}, roles={sorted(self.roles)})"
