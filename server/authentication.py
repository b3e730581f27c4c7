"""``Authentication``: the layer that no request passes of which it is not known who sends it.

Everything is closed but the probes, so that no path, plugin's route, unknown route or WebSocket can
be forgotten. Which scopes a route needs is ``route_access``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from hookserve.hookspecs import SCOPES, PluginError

from .credentials import Credentials
from .errors import ApiError
from .request_context import head_of, request_id_of, route_path, set_sender
from .request_guard import PROBES
from .route_access import CoreRoute, send_refusal

logger = logging.getLogger("hookserve.server.authentication")

_CHALLENGE = {"www-authenticate": "Bearer"}
_MISSING = "missing_api_key"


class Authentication:
    """Inside the server's limits, around the plugins' middleware and the routes."""

    def __init__(self, app: ASGIApp, credentials: Credentials, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._credentials = credentials
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if not self._credentials.is_closed:
            set_sender(scope, None, frozenset(SCOPES))
        elif is_public(scope, self._routes):
            set_sender(scope, None, frozenset())
        else:
            refusal = await self._find_sender(scope)
            if refusal is not None:
                await send_refusal(refusal, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _find_sender(self, scope: Scope) -> ApiError | None:
        """Note who sends the request, or say why it is refused."""
        head = head_of(scope)
        try:
            principal = await self._credentials.identify(head)
        except PluginError as error:
            # What a plugin says of its failure is for the log: it may hold internals.
            logger.warning(
                "plugin %s failed to say who sends %s %r (request %s), which is denied: %s",
                error.identity,
                head.method,
                head.path,
                request_id_of(scope),
                error.message,
            )
            return _unauthenticated(
                "it cannot be found out now who sends this", "authentication_failed"
            )
        if principal is not None:
            set_sender(scope, principal, principal.scopes)
            return None
        if "authorization" in head.headers:
            return _unauthenticated("these credentials are not known here", "invalid_api_key")
        if not self._credentials.takes_keys:
            return _unauthenticated("this needs credentials that are known here", _MISSING)
        return _unauthenticated(
            "this needs a key; send it as 'Authorization: Bearer KEY'", _MISSING
        )


def is_public(scope: Scope, routes: Sequence[BaseRoute]) -> bool:
    """Whether a built-in route will answer that asks nobody who they are; a plugin's route in its
    place does ask."""
    if route_path(scope) not in PROBES:
        return False
    answering = next((each for each in routes if each.matches(scope)[0] is Match.FULL), None)
    return isinstance(answering, CoreRoute) and not answering.needs


def _unauthenticated(message: str, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers=_CHALLENGE)
