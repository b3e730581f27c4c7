"""What the OpenAI routes do before they generate: read and decode a body, and name what it holds
that has no effect."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.requests import Request

from .limits import check_content_type
from .serving import Serving
from .wire_json import RequestDecoder

UNUSED_HEADER = "x-hookserve-unused"


async def read_request(request: Request, decoder: RequestDecoder) -> tuple[Any, dict[str, str]]:
    """The decoded request, and the headers that every reply to it carries.

    Raises:
        ApiError: 400, 408, 413 or 415.
    """
    check_content_type(request.headers.get("content-type"))
    decoded, unused = decoder.decode(await request.body())
    return decoded, {UNUSED_HEADER: ", ".join(sorted(unused))} if unused else {}


def serving_of(request: Request) -> Serving:
    serving = request.app.state.serving
    assert isinstance(serving, Serving)
    return serving


def reply_id(prefix: str) -> str:
    """``cmpl-…`` or ``chatcmpl-…``; never taken from the client."""
    return f"{prefix}-{secrets.token_hex(16)}"
