"""Requests of ``/v1/responses``."""

from __future__ import annotations

from hookserve.engine.text.tool_calls import ParserRequest

__all__ = ["ResponsesRequest"]

__surface__ = {
    "ResponsesRequest": "shape: for annotations and isinstance of parsers; the route is not "
    "served, so no parser is given one",
}


class ResponsesRequest(ParserRequest):
    """What a parser would be given."""
