"""What the OpenAI routes do before they generate: read and decode a body, and name what it holds
that has no effect."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from starlette.requests import Request

from .limits import read_json
from .serving import Serving
from .wire_json import RequestDecoder

MAX_BYTES_ON_LOOP = 64 * 2**10
"""A larger body is decoded in a thread: its time would be missing to every open stream."""
UNUSED_HEADER = "x-hookserve-unused"


class Reading(NamedTuple):
    """A request that was read."""

    body: bytes
    decoded: Any
    headers: dict[str, str]
    """Those that every reply to it carries."""


async def read_request(request: Request, decoder: RequestDecoder) -> Reading:
    """
    Raises:
        ApiError: 400, 408, 413 or 415.
    """
    body = await read_json(request)
    if len(body) > MAX_BYTES_ON_LOOP:
        decoded, unused = await asyncio.to_thread(decoder.decode, body)
    else:
        decoded, unused = decoder.decode(body)
    headers: dict[str, str] = {}
    note_unused(headers, unused)
    return Reading(body, decoded, headers)


def note_unused(headers: dict[str, str], names: Iterable[str]) -> None:
    """Let a reply with these headers say that these fields have no effect either."""
    named = [name for name in headers.get(UNUSED_HEADER, "").split(", ") if name]
    unused = sorted({*named, *names})
    if unused:
        headers[UNUSED_HEADER] = ", ".join(unused)


def serving_of(request: Request) -> Serving:
    serving = request.app.state.serving
    assert isinstance(serving, Serving)
    return serving


def reply_id(prefix: str, name: str | None) -> str:
    """``cmpl-…`` or ``chatcmpl-…``.

    Args:
        name: the client's own; nothing is found by it, so two requests may have the same.
    """
    return f"{prefix}-{name or secrets.token_hex(16)}"
