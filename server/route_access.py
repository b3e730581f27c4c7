"""Which scopes a route needs, and the wrapper of the built-in ones that asks for them.

The question is asked of the route that was matched, so no spelling of a path leads around it. Who
sends a request was found out before, by ``Authentication``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from hookserve.hookspecs import request_types

from .errors import ApiError
from .request_context import grants_of

Needs = frozenset[request_types.Scope]
"""Scopes of which a request needs one."""

PUBLIC: Needs = frozenset()
"""Nobody is asked who they are; for built-in routes alone."""
INFERENCE: Needs = frozenset({"inference"})
ADMIN: Needs = frozenset({"admin"})
EITHER: Needs = INFERENCE | ADMIN


class ScopedRoute(Route):
    """A route that says which scopes it needs; any other one needs ``inference``.

    Args:
        needs: a set of scopes, of which a request must have one.

    Raises:
        ValueError: there is no such scope.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        needs: Set[request_types.Scope],
        methods: Sequence[str],
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.needs: Needs = frozenset(needs)
        unknown = sorted(self.needs - EITHER)
        if unknown:
            raise ValueError(
                f"route {path}: no scope is called {unknown[0]!r}; expected a set of "
                f"{', '.join(sorted(EITHER))}"
            )


def needs_of(route: BaseRoute) -> Needs:
    return route.needs if isinstance(route, ScopedRoute) else INFERENCE


def needs_of_plugin(route: BaseRoute, replaced: Sequence[BaseRoute]) -> Needs:
    """Of a plugin's route: never nothing, and the scope admin where a route had it that this one
    stands in for."""
    own = needs_of(route)
    if any(needs_of(other) == ADMIN for other in replaced):
        return ADMIN
    return own or EITHER


def _refusal_of(scope: Scope, needs: Needs) -> ApiError | None:
    """The 403 for a sender of whom it is known that none of these scopes was given to them."""
    if not needs or needs & grants_of(scope):
        return None
    wanted = " or ".join(sorted(needs))
    return ApiError(
        403,
        f"this needs the scope {wanted}, which these credentials do not have",
        code="missing_scope",
    )


async def is_refused(needs: Needs, scope: Scope, receive: Receive, send: Send) -> bool:
    """Whether the request may not use the route; it has its answer then."""
    refusal = _refusal_of(scope, needs)
    if refusal is not None:
        await send_refusal(refusal, scope, receive, send)
    return refusal is not None


async def send_refusal(refusal: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an error; a WebSocket that cannot be answered is closed."""
    if scope["type"] == "websocket" and (
        "websocket.http.response" not in scope.get("extensions", {})
    ):
        # 1008 is a violated policy (RFC 6455, 7.4.1).
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.message})
    else:
        await refusal.response()(scope, receive, send)


class CoreRoute(BaseRoute):
    """A built-in route behind the scopes that it needs."""

    def __init__(self, route: BaseRoute) -> None:
        self.route = route
        self.needs = needs_of(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return self.route.matches(scope)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        return self.route.url_path_for(name, **path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await is_refused(self.needs, scope, receive, send):
            return
        await self.route.handle(scope, receive, send)
