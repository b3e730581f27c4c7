"""``GET /v1/admin/scheduler_config``, by a method that the worker has from ``worker``'s class."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from vllm.engine.protocol import EngineClient
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

router = APIRouter(prefix="/v1/admin")


@router.get("/scheduler_config")
async def scheduler_config(raw_request: Request) -> dict[str, Any]:
    engine: EngineClient | None = raw_request.app.state.sample_engine
    if engine is None:
        raise HTTPException(status_code=503, detail="there is no engine")
    return {"results": await engine.collective_rpc("get_scheduler_config")}


class SampleAdmin(EndpointPlugin):
    name = "sample_admin"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        app.include_router(router)

    async def init_state(
        self, engine_client: EngineClient | None, state: Any, args: Namespace
    ) -> None:
        state.sample_engine = engine_client
