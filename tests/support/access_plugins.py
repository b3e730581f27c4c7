"""Keys, and plugins that know senders: for tests of who reaches which route."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from hookserve.hookspecs import Endpoint, Named, Principal, RequestHead, hookimpl
from hookserve.server import ScopedRoute
from hookserve.server.secret import Secret

KEYS = {"api_key": (Secret("spare"), Secret("sesame")), "admin_key": (Secret("root"),)}


class Routes:
    """A plugin with a route that asks for nothing special, and two that do."""

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("mine", lambda: self)

    def routes(self) -> list[Any]:
        return [
            Route("/mine", self.answer),
            ScopedRoute("/mine/admin", self.answer, needs={"admin"}, methods=["GET"]),
            ScopedRoute("/mine/public", self.answer, needs=set(), methods=["GET"]),
            WebSocketRoute("/mine/socket", self.socket),
        ]

    async def answer(self, request: Request) -> PlainTextResponse:
        principal = request.state.principal
        return PlainTextResponse("nobody" if principal is None else principal.name)

    async def socket(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(websocket.state.principal.name)
        await websocket.close()


class Tenants:
    """A plugin whose hook knows the header ``x-tenant``, and an authenticator that knows
    ``x-badge``."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []

    @hookimpl
    async def authenticate(self, request: RequestHead) -> Principal | None:
        self.heads.append(request)
        tenant = request.headers.get("x-tenant")
        if tenant is None:
            return None
        return Principal(tenant, frozenset({"admin"} if tenant == "boss" else {"inference"}))

    @hookimpl
    def authenticator(self) -> Named:
        return Named("badges", Badges)


class Badges:
    built: Any = None

    def __init__(self, config: Any) -> None:
        Badges.built = config

    async def authenticate(self, head: RequestHead) -> Principal | None:
        badge = head.headers.get("x-badge")
        return None if badge is None else Principal(f"badge-{badge}")
