"""``RequestGuard``: the outermost layer of every request: its id, the gate, and the last catch.

A pure ASGI layer: it wraps ``send`` once and never touches the body, so streams and disconnects
pass through as they are.
"""

from __future__ import annotations

import logging
import re
import uuid

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hookserve.hookspecs.notify_loop import caught

from .errors import ReplyCutShort, internal_error
from .health import Health
from .request_context import begin, request_id_of, route_path
from .route_access import send_refusal

logger = logging.getLogger("hookserve.server.request")

MAX_REQUEST_ID_LEN = 128
PROBES = frozenset({"/livez", "/readyz", "/health", "/version"})
"""Answered in every phase."""
OBSERVERS = frozenset({"/metrics", "/v1/plugins"})
"""Answered as soon as the model is loaded, also while stopping or stalled."""

_NOT_IN_ID = re.compile(r"[^\x21-\x7e]")


class RequestGuard:
    def __init__(self, app: ASGIApp, health: Health) -> None:
        self._app = app
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._open_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin(scope, _request_id(scope))
        is_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                name = request_id_of(scope).encode("ascii")
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_id)
            return
        try:
            await self._app(scope, receive, send_with_id)
        except ReplyCutShort:
            raise
        except ClientDisconnect:
            return  # in the middle of its own request: there is nobody to answer
        except caught():
            request_id = request_id_of(scope)
            logger.exception("request %s failed: %s %r", request_id, scope["method"], scope["path"])
            if is_started:
                raise ReplyCutShort from None
            await internal_error(request_id).response()(scope, receive, send_with_id)

    async def _open_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Behind the same gate. What fails in it, its owner's guard tells and ends it."""
        begin(scope, _request_id(scope))
        problem = self._health.problem()
        if problem is not None:
            await send_refusal(problem.error(), scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The 503 for a request that cannot be served in this phase."""
        path = route_path(scope)
        if path in PROBES:
            return None
        problem = self._health.problem()
        if problem is None or (path in OBSERVERS and problem.code != "loading"):
            return None
        return problem.error().response()


def _request_id(scope: Scope) -> str:
    """The client's own id, cleaned and cut, or a new one. It is a label: nothing is found by it."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = _NOT_IN_ID.sub("", value.decode("latin-1"))[:MAX_REQUEST_ID_LEN]
            if text:
                return text
    return uuid.uuid4().hex
