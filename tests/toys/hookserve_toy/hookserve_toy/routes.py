"""A route that answers with what its life-cycle methods have seen."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from .trace import note

note("import", module=__name__)


class ToyRoutes:
    def __init__(self) -> None:
        self.engine_running: bool | None = None

    def routes(self) -> list[BaseRoute]:
        return [Route("/toy", self.answer)]

    async def init_state(self, engine_client: Any, state: Any, settings: Any) -> None:
        self.engine_running = bool(engine_client.is_running)
        note("endpoint_started")

    async def answer(self, request: Request) -> JSONResponse:
        return JSONResponse({"toy": True, "engine_running": self.engine_running})

    async def shutdown(self) -> None:
        note("endpoint_stopped")
