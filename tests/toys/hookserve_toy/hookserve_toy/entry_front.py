"""Entry module for the front alone: a stat logger, a route, and what happens to requests."""

from __future__ import annotations

from typing import Any

from hookserve.hookspecs import Endpoint, hookimpl

from .trace import note

note("import", module=__name__)


@hookimpl
def stat_logger() -> str:
    return "hookserve_toy.stats:ToyStatLogger"


@hookimpl
def endpoint() -> Endpoint:
    return Endpoint("toy", "hookserve_toy.routes:ToyRoutes")


@hookimpl
def request_finished(record: Any) -> None:
    note(
        "request_finished",
        request_id=record.request_id,
        reason=record.finish_reason,
        completion_tokens=record.num_completion_tokens,
    )
