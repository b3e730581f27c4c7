"""The routes for whoever operates the server: health, version, metrics, plugins."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from .metrics import CONTENT_TYPE
from .openai_request import serving_of
from .route_access import ADMIN, EITHER, PUBLIC, ScopedRoute


class HealthEndpoint:
    """``/livez``: the process runs. ``/readyz`` and ``/health``: it can answer requests now."""

    def routes(self) -> list[BaseRoute]:
        return [
            ScopedRoute("/livez", live, needs=PUBLIC, methods=["GET"]),
            ScopedRoute("/readyz", ready, needs=PUBLIC, methods=["GET"]),
            ScopedRoute("/health", ready, needs=PUBLIC, methods=["GET"]),
        ]


class VersionEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [ScopedRoute("/version", show_version, needs=EITHER, methods=["GET"])]


class MetricsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [ScopedRoute("/metrics", show_metrics, needs=EITHER, methods=["GET"])]


class PluginsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [ScopedRoute("/v1/plugins", show_plugins, needs=ADMIN, methods=["GET"])]


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
    """The server's own metrics and those of stat loggers, in Prometheus' text format."""
    serving = serving_of(request)
    await serving.hook_metrics.refresh()
    return Response(serving.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def show_plugins(request: Request) -> Response:
    """The live reports of every process, by its name; of one that does not answer the reason."""
    reports = await serving_of(request).process_reports()
    answered = [report for report in reports if report.problem is None]
    return _json(
        {
            "object": "list",
            "processes": {report.process: report.plugins for report in answered},
            "roles": {report.process: report.roles for report in answered},
            "pids": {report.process: report.pid for report in reports if report.pid is not None},
            "ops": {report.process: report.ops for report in answered if report.ops},
            "unanswered": {r.process: r.problem for r in reports if r.problem is not None},
        }
    )


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
