"""One sequence in the engine."""

from __future__ import annotations

from hookserve.engine.request import Request, RequestStatus

__all__ = ["Request", "RequestStatus"]

__surface__ = {
    "Request": "live: what schedulers are given; the engine makes it of the message that the front "
    "sent, and plugins may keep attributes on it",
    "RequestStatus": "live: Request.status; FINISHED_IGNORED and FINISHED_REPETITION are not there",
    "StreamingUpdate": "refused: a prompt comes whole",
}
