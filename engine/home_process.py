"""``HomeProcess``: the process that an engine was made in, as against copies that it forks.

A copy has neither the threads that compute nor connections of its own, so it can use no engine,
and must not end one either: what it would close are its parent's.
"""

from __future__ import annotations

import os

from .errors import EngineDeadError


class HomeProcess:
    """The process that makes it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """
        Raises:
            EngineDeadError: this is a copy.
        """
        if not self.is_here:
            raise EngineDeadError(
                f"this engine was made in process {self._pid}, and a process that was forked from "
                "it cannot use it; make one there"
            )
