"""``GET /v1/toy/hello``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fastapi import FastAPI, HTTPException, Request


class ToyEndpoint:
    name = "toy_endpoint"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        @app.get("/v1/toy/hello")
        async def hello(raw_request: Request) -> dict[str, Any]:
            if raw_request.app.state.toy_engine is None:
                raise HTTPException(503, "there is no engine")
            return {"hello": "from the toy"}

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        state.toy_engine = engine_client
