"""``GET /openapi.json`` and ``/docs``: the server's own description, for programs and as a page.

The page is one file without anything from elsewhere; it reads the document beside it.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from .route_access import EITHER, ScopedRoute
from .settings import ServerSettings

_PAGE_HEADERS = {
    # The page's own script, and requests to this server, and nothing else.
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class OpenApiEndpoint:
    def __init__(self) -> None:
        self._is_off = False
        self._root_path = ""
        self._document: bytes | None = None

    def routes(self) -> list[BaseRoute]:
        return [
            ScopedRoute("/openapi.json", self.show_document, needs=EITHER, methods=["GET"]),
            ScopedRoute("/docs", self.show_page, needs=EITHER, methods=["GET"]),
        ]

    async def init_state(self, client: object, state: object, settings: ServerSettings) -> None:
        del client, state
        self._is_off = settings.disable_fastapi_docs
        self._root_path = settings.root_path

    async def show_document(self, request: Request) -> Response:
        self._check_on()
        if self._document is None:
            self._document = await asyncio.to_thread(self._make, request.app)
        return Response(self._document, media_type="application/json")

    async def show_page(self, request: Request) -> Response:
        del request
        self._check_on()
        page = files(__package__).joinpath("docs_page.html").read_bytes()
        return Response(page, headers=_PAGE_HEADERS, media_type="text/html")

    def _check_on(self) -> None:
        """Raise what an unknown route gets, where the operator wants no such routes."""
        if self._is_off:
            raise HTTPException(404)

    def _make(self, app: Any) -> bytes:
        from .openapi_document import openapi_document

        document = openapi_document(
            app.router.routes,
            app.state.serving.model_names,
            root_path=self._root_path,
            is_closed=app.state.credentials.is_closed,
        )
        return msgspec.json.encode(document)
