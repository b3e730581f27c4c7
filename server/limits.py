"""What a client may send, and how slowly: body size, deadlines, number of prompts.

``BodyLimits`` holds for every route, ``read_json`` for those that take JSON. Headers and framing
are ``http_protocol``'s; what the content means is not judged here.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, bad_request

MAX_BODY_BYTES = 32 * 2**20
MAX_JSON_BYTES = 8 * 2**20
"""A JSON body is decoded in one call, which nothing else in the process can interrupt: 8 MiB take
about as long as two steps of the engine."""
MAX_JSON_PARTS = 2**16
MAX_JSON_TEXTS = 2**18
"""Objects and lists, and texts, of one body: small ones take twenty times as long to decode as
the same bytes in one long text."""
BODY_DEADLINE_S = 60.0
MAX_PROMPTS = 1024
MAX_MESSAGES = 8192


class BodyLimits:
    """Refuses a body that is too big (413), also without a content-length, or that takes too long
    to arrive (408). The refusal surfaces where the route reads the body."""

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int = MAX_BODY_BYTES,
        body_deadline_s: float = BODY_DEADLINE_S,
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_deadline_s = body_deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _content_length(scope)
        if announced is not None and announced > self._max_body_bytes:
            await self._too_big(announced).response()(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        deadline = asyncio.get_running_loop().time() + self._body_deadline_s
        num_bytes = 0
        is_complete = False

        async def limited() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(
                    408,
                    f"the body did not arrive within {self._body_deadline_s:.0f} s",
                    code="body_timeout",
                    headers={"connection": "close"},
                ) from None
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > self._max_body_bytes:
                    raise self._too_big(None)
                is_complete = not message.get("more_body", False)
            return message

        return limited

    def _too_big(self, num_bytes: int | None) -> ApiError:
        return too_big(num_bytes, self._max_body_bytes)


def too_big(num_bytes: int | None, limit: int) -> ApiError:
    """The 413. The protocol reads and drops what is left of the body before it closes: a client
    that still writes would lose the reply to a closed connection."""
    given = f"{num_bytes} bytes" if num_bytes is not None else "more"
    return ApiError(
        413,
        f"the body has {given}; {limit} bytes are the limit",
        code="body_too_large",
        headers={"connection": "close"},
    )


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


async def read_json(request: Request) -> bytes:
    """The body of a request that should be JSON; it is not decoded, only its parts are counted.

    Raises:
        ApiError: 408, 413 or 415; 400 for more parts than could be decoded in good time.
    """
    check_content_type(request.headers.get("content-type"))
    check_content_encoding(request.headers.getlist("content-encoding"))
    announced = _content_length(request.scope)
    if announced is not None and announced > MAX_JSON_BYTES:
        raise too_big(announced, MAX_JSON_BYTES)
    pieces, num_bytes = [], 0
    async for piece in request.stream():
        num_bytes += len(piece)
        if num_bytes > MAX_JSON_BYTES:
            raise too_big(None, MAX_JSON_BYTES)
        pieces.append(piece)
    body = b"".join(pieces)
    _check_parts(body)
    return body


def _check_parts(body: bytes) -> None:
    """Brackets and quotes inside texts count too; what would be refused for those alone has more
    tokens than any request may have."""
    counts = (
        ("objects and lists", body.count(b"[") + body.count(b"{"), MAX_JSON_PARTS),
        ("texts", body.count(b'"') // 2, MAX_JSON_TEXTS),
    )
    for what, count, limit in counts:
        if count > limit:
            raise bad_request(
                f"the body has {count} {what}; {limit} are the limit", code="body_too_complex"
            )


def check_content_encoding(encodings: list[str]) -> None:
    """Raise the 415 for a body that was compressed: its size could not be bounded."""
    named = [name.strip().lower() for each in encodings for name in each.split(",")]
    wrong = [name for name in named if name not in ("", "identity")]
    if wrong:
        raise ApiError(
            415,
            f"content-encoding {wrong[0][:100]!r} is not supported; send the body as it is",
            code="unsupported_content_encoding",
            headers={"accept-encoding": "identity"},
        )


def check_content_type(content_type: str | None) -> None:
    """Raise the 415 for a body that says it is something else than JSON."""
    if content_type is None:
        return
    media_type = content_type.split(";", 1)[0].strip().lower()
    if media_type == "application/json" or media_type.endswith("+json"):
        return
    raise ApiError(
        415,
        f"content-type {media_type[:100]!r} is not supported; send application/json",
        code="unsupported_media_type",
    )


def check_num_prompts(num_prompts: int) -> None:
    if num_prompts > MAX_PROMPTS:
        raise bad_request(
            f"{num_prompts} prompts in one request; {MAX_PROMPTS} are the limit",
            param="prompt",
            code="too_many_prompts",
        )
