"""``PluginRestarts``: what follows from plugins that fail or crash in processes that are being
started: they are put out everywhere, and the processes are started again.

Whoever starts the processes asks it after each start that did not succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hookserve.hookspecs import Denied, Host
from hookserve.hookspecs.settings import CRASH_STAGE

from .errors import EX_CONFIG, EngineStartError

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""How often processes are started again without plugins that failed in them."""


class PluginRestarts:
    """One for one start.

    Args:
        what: is started, for what is said of it.

    Attributes:
        denied: the plugins that the processes to come must leave out.
    """

    def __init__(self, host: Host, what: str = "the engine") -> None:
        self._host = host
        self._what = what
        self.denied = [*host.settings.denied, *host.failures()]
        self._crashed: set[str] = set()
        self._num_starts = 1
        self._num_denials = 0

    def decide(self, failures: Sequence[Denied]) -> None:
        """Put the plugins out, or give one that crashed for the first time another try: what ended
        the process may have had nothing to do with it.

        Raises:
            RequiredPluginError: if one of them must work.
            EngineStartError: plugins failed in too many starts.
        """
        proven = [failure for failure in failures if self._is_proven(failure)]
        if proven:
            self._deny(proven)
        self._num_starts += 1

    def _is_proven(self, failure: Denied) -> bool:
        if failure.stage != CRASH_STAGE or failure.identity in self._crashed:
            return True
        self._crashed.add(failure.identity)
        logger.warning(
            "plugin %s: %s (%s); %s is started once more",
            failure.identity,
            failure.error,
            failure.process,
            self._what,
        )
        return False

    def _deny(self, failures: Sequence[Denied]) -> None:
        if self._num_denials == MAX_RESTARTS:
            names = ", ".join(sorted({failure.identity for failure in failures}))
            raise EngineStartError(
                EX_CONFIG,
                f"plugins still fail in {self._what} after it was started {self._num_starts} "
                f"times: {names}; leave them out with --disable-plugins",
            )
        self._num_denials += 1
        for failure in failures:  # all of them first: a required one ends the start instead
            self._host.deny(failure)
        for failure in failures:
            logger.warning(
                "plugin %s failed in the %s process (%s: %s); %s starts again without it",
                failure.identity,
                failure.process,
                failure.stage,
                failure.error,
                self._what,
            )
        self.denied.extend(failures)
