"""``Health``: whether this server can answer now, and if not, why. The routes are in
``operations``; noticing a death is the supervisor's."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hookserve.engine.engine_client import EngineClient

from .errors import ApiError, unavailable

Phase = Literal["loading", "ready", "draining", "dead"]


class Problem(NamedTuple):
    """Why the server is not ready: a word for programs and a sentence for people."""

    code: str
    message: str

    def error(self) -> ApiError:
        return unavailable(self.message, self.code)


class Health:
    """Set by the supervisor and by the signal handling; a stall is seen when somebody asks."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._phase: Phase = "loading"
        self.death = ""
        """Why the engine ended, if it did."""

    def set_ready(self) -> None:
        """The engine has finished a step; later phases are never left for this one."""
        if self._phase == "loading":
            self._phase = "ready"

    def set_draining(self) -> None:
        if self._phase != "dead":
            self._phase = "draining"

    def set_dead(self, reason: str) -> None:
        self._phase = "dead"
        self.death = reason

    def problem(self) -> Problem | None:
        """``None`` if ready."""
        if self._phase == "loading":
            return Problem("loading", "the model is loading")
        if self._phase == "dead":
            return Problem("engine_dead", self.death)
        if self._phase == "draining":
            return Problem("draining", "the server is stopping")
        age_s = self._client.stalled_s()
        if age_s is not None:
            return Problem("stalled", f"the engine has finished no step for {age_s:.0f} s")
        return None
