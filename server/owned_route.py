"""``OwnedRoute``: a plugin's route, whose failure is that request's and names the plugin.

Which of them are served, and in which order, is ``route_order``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from hookserve.engine.errors import EngineDeadError, RequestError
from hookserve.hookspecs import Claim
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught

from .errors import ApiError, ReplyCutShort
from .exchange import Exchange
from .plugin_tasks import PluginExit
from .route_access import INFERENCE, CoreRoute, Needs, is_refused

logger = logging.getLogger("hookserve.server.owned_route")

_HANDLERS = "starlette.exception_handlers"
"""Where Starlette's routes find the application's handlers: those of classes, those of statuses."""
_ANSWERS = (HTTPException, ApiError, EngineDeadError, RequestError)
"""What the server's own handlers make a response of, whoever raised it."""
_MAX_REASON_BYTES = 123
"""A frame that ends a WebSocket holds no more (RFC 6455, 5.5)."""


class Part(NamedTuple):
    """A plain route, and which scopes it needs."""

    route: BaseRoute
    needs: Needs


@dataclass
class Surroundings:
    """What a plugin's routes have around them that no other route has."""

    handlers: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """By class of exception, or status."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What its lifespan yielded, for ``request.state``."""


NOTHING_AROUND = Surroundings()


class OwnedRoute(BaseRoute):
    """
    Args:
        parts: the plain routes that this one consists of; itself, unless it is a router.
    """

    def __init__(
        self,
        route: BaseRoute,
        claim: Claim,
        parts: Sequence[Part],
        around: Surroundings = NOTHING_AROUND,
    ) -> None:
        self.route = route
        self.claim = claim
        self.parts = tuple(parts)
        self._around = around
        self._is_reported = False

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        try:
            with enter(self.claim.plugin):
                return self.route.matches(scope)
        except caught() as error:
            if not self._is_reported:
                self._is_reported = True
                logger.warning(
                    "plugin %s: a route of endpoint %s fails to compare paths, and is not served: "
                    "%s",
                    self.claim.owner,
                    self.claim.name,
                    describe_error(error),
                )
            return Match.NONE, {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        return self.route.url_path_for(name, **path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await is_refused(self._needs(scope), scope, receive, send):
            return
        exchange = Exchange(scope, receive, send)
        task = asyncio.current_task()
        if task is not None:
            task.set_name(f"{scope['path']!r} of plugin {self.claim.owner}")
        self._surround(scope)
        is_websocket = scope["type"] == "websocket"
        try:
            with enter(self.claim.plugin):
                await self.route.handle(scope, exchange.receive, exchange.send)
                exchange.check_end()
        except (*_ANSWERS, ClientDisconnect) as error:
            if not (is_websocket and exchange.is_started):
                raise
            await _close(send, str(error))  # there can be no response any more
        except caught() as error:
            if is_websocket and isinstance(error, WebSocketDisconnect):
                return  # as a client ends one, if its route goes on reading
            logger.exception(
                "plugin %s: endpoint %s failed at %r",
                self.claim.owner,
                self.claim.name,
                scope["path"],
            )
            if is_websocket:
                await _close(send)
                return
            if exchange.is_started:
                raise ReplyCutShort from None
            cause = error.__cause__ if isinstance(error, PluginExit) else error
            raise ApiError(
                500,
                f"the plugin {self.claim.owner} failed with {type(cause).__name__}",
                code="plugin_error",
            ) from None

    def _needs(self, scope: Scope) -> Needs:
        """Those of the part that answers, as far as that can be told."""
        if len(self.parts) == 1:
            return self.parts[0].needs
        answering = (part for part in self.parts if part.route.matches(scope)[0] is Match.FULL)
        return next((part.needs for part in answering), INFERENCE)

    def _surround(self, scope: Scope) -> None:
        if self._around.state:
            scope["state"] = {**self._around.state, **scope.get("state", {})}
        own = self._around.handlers
        if _HANDLERS in scope and (own or scope["type"] == "websocket"):
            by_class, by_status = scope[_HANDLERS]
            if scope["type"] == "websocket":  # answered here: it may be open by then
                by_class = {key: by_class[key] for key in by_class if key not in _ANSWERS}
            scope[_HANDLERS] = (
                {**by_class, **{key: own[key] for key in own if not isinstance(key, int)}},
                {**by_status, **{key: own[key] for key in own if isinstance(key, int)}},
            )


def unguarded(route: BaseRoute) -> BaseRoute:
    """One of the list that is served, as it was made."""
    return route.route if isinstance(route, OwnedRoute | CoreRoute) else route


async def _close(send: Send, reason: str = "") -> None:
    """End a WebSocket, if it is not over. 1011 is a server's failure (RFC 6455, 7.4.1)."""
    said = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
    with contextlib.suppress(Exception):  # the server under it says so where it is
        await send({"type": "websocket.close", "code": 1011, "reason": said})
