"""The routes for whoever operates the server: health, version, metrics, plugins."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hookserve.engine.errors import EngineDeadError

from .errors import cut
from .metrics import CONTENT_TYPE
from .openai_request import serving_of


class HealthEndpoint:
    """``/livez``: the process runs. ``/readyz`` and ``/health``: it can answer requests now."""

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/livez", live, methods=["GET"]),
            Route("/readyz", ready, methods=["GET"]),
            Route("/health", ready, methods=["GET"]),
        ]


class VersionEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route("/version", show_version, methods=["GET"])]


class MetricsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route("/metrics", show_metrics, methods=["GET"])]


class PluginsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route("/v1/plugins", show_plugins, methods=["GET"])]


async def live(request: Request) -> Response:
    del request
    return _json({"status": "alive"})


async def ready(request: Request) -> Response:
    """200, or 503 with the reason in the envelope."""
    problem = request.app.state.health.problem()
    if problem is not None:
        raise problem.error()
    return _json({"status": "ready"})


async def show_version(request: Request) -> Response:
    del request
    return _json({"version": version("hookserve")})


async def show_metrics(request: Request) -> Response:
    """Everything that stat loggers offer as a Prometheus registry, in the text format."""
    body = serving_of(request).metrics.text()
    return Response(body, headers={"content-type": CONTENT_TYPE})


async def show_plugins(request: Request) -> Response:
    """The live reports of every process. One that does not answer is named, with the reason."""
    serving = serving_of(request)
    processes: dict[str, Any] = {"front": msgspec.to_builtins(serving.host.describe())}
    unanswered: dict[str, str] = {}
    try:
        processes.update(await serving.client.describe())
    except TimeoutError:
        unanswered["engine"] = "no answer in time"
    except (EngineDeadError, RuntimeError) as error:
        unanswered["engine"] = cut(str(error))
    return _json({"object": "list", "processes": processes, "unanswered": unanswered})


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
