"""``OlderPaths``: which plugins import modules by paths that vLLM has left; each is told once.

A module that is served by an older path says so in ``__older_path_of__``. It works here as well as
by its newer path; in a vLLM of today the package may fail for it.
"""

from __future__ import annotations

import logging

from hookserve.hookspecs import running
from hookserve.hookspecs.self_registration import tell_operator

logger = logging.getLogger(__name__)


class OlderPaths:
    """Of one process, where a module is executed once: of plugins that import it, the first is
    told."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def note(self, name: str, home: str) -> None:
        """The module of that name was imported, whose home is another one now."""
        plugin = running()
        who = "code that is no plugin's" if plugin is None else plugin.identity
        logger.debug("%s imports %s, an older path of %s", who, name, home)
        if plugin is None or plugin.registrar is None or plugin.identity in self._told:
            return
        self._told.add(plugin.identity)
        tell_operator(
            f"imports {name}, which vLLM has moved to {home}; the older path is served here, and "
            "so are others like it"
        )
