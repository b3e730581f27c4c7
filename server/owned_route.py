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
from .route_access import EITHER, Needs, is_refused

logger = logging.getLogger("hookserve.server.owned_route")

_HANDLERS = "starlette.exception_handlers"
"""Where Starlette's routes find the application's handlers: those of classes, those of statuses."""


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
        try:
            with enter(self.claim.plugin):
                await self.route.handle(scope, exchange.receive, exchange.send)
                exchange.check_end()
        except WebSocketDisconnect:
            return  # as a client ends one, if its route goes on reading
        except (HTTPException, ApiError, EngineDeadError, RequestError, ClientDisconnect):
            raise
        except caught() as error:
            logger.exception(
                "plugin %s: endpoint %s failed at %r",
                self.claim.owner,
                self.claim.name,
                scope["path"],
            )
            if scope["type"] == "websocket":
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
        """Those of the part that answers; a method that none of them has runs nobody's code."""
        if len(self.parts) == 1:
            return self.parts[0].needs
        answering = (part for part in self.parts if part.route.matches(scope)[0] is Match.FULL)
        return next((part.needs for part in answering), EITHER)

    def _surround(self, scope: Scope) -> None:
        if self._around.state:
            scope["state"] = {**self._around.state, **scope.get("state", {})}
        if self._around.handlers and _HANDLERS in scope:
            by_class, by_status = scope[_HANDLERS]
            own = self._around.handlers
            scope[_HANDLERS] = (
                {**by_class, **{key: own[key] for key in own if not isinstance(key, int)}},
                {**by_status, **{key: own[key] for key in own if isinstance(key, int)}},
            )


async def _close(send: Send) -> None:
    """End a WebSocket, if it is not over. 1011 is a server's failure (RFC 6455, 7.4.1)."""
    with contextlib.suppress(Exception):  # the server under it says so where it is
        await send({"type": "websocket.close", "code": 1011, "reason": ""})
