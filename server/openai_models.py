"""``GET /v1/models`` and ``/v1/models/{id}``: the names under which the model is served."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .openai_request import serving_of
from .serving import Serving


class ModelsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", show_model, methods=["GET"]),
        ]


async def list_models(request: Request) -> Response:
    serving = serving_of(request)
    cards = [_card(serving, name) for name in serving.model_names]
    return _json({"object": "list", "data": cards})


async def show_model(request: Request) -> Response:
    serving = serving_of(request)
    return _json(_card(serving, serving.model_name(request.path_params["model"])))


def _card(serving: Serving, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "hookserve",
        "root": serving.model_names[0],
        "parent": None,
        "max_model_len": serving.engine_config.model.max_model_len,
    }


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
