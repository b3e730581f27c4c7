"""What a client may send, and how slowly: body size, header size, deadlines, number of prompts.

``BodyLimits`` is the ASGI side; ``LimitedHttpProtocol`` is uvicorn's protocol with the bounds on
headers that it lacks. What the content means is not judged here.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError, bad_request

MAX_BODY_BYTES = 32 * 2**20
MAX_HEADER_BYTES = 64 * 2**10
"""Request line and headers together."""
HEADER_DEADLINE_S = 30.0
"""From the first byte of a request to the end of its headers."""
BODY_DEADLINE_S = 60.0
LINGER_S = 1.0
"""How long a connection that was refused still reads, so that its reply arrives."""
MAX_PROMPTS = 1024


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
        # The connection stays: what is left of the body is read and dropped, because a client that
        # still writes would lose the reply to a closed one.
        given = f"{num_bytes} bytes" if num_bytes is not None else "more"
        return ApiError(
            413,
            f"the body has {given}; {self._max_body_bytes} bytes are the limit",
            code="body_too_large",
        )


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


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


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol that also bounds size and duration of the headers.

    A request that offers another protocol (``Upgrade``; some clients do with each) is answered as
    if it did not: there is none to change to.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_timer is None:
                self._header_timer = self.loop.call_later(HEADER_DEADLINE_S, self._refuse, 408)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(400)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431)

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            else:
                return
            if not self._ignores_upgrade():
                return  # CONNECT: it has been answered, and what follows is not HTTP
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(head)

    def _ignores_upgrade(self) -> bool:
        """Whether the parser takes what follows the headers for another protocol, though it is the
        request's body."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        head = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)
        fields = [b"%s: %s\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        return head + b"".join(fields) + b"\r\n"

    def on_headers_complete(self) -> None:
        if self._ignores_upgrade():
            return
        size = len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers)
        self._end_headers()
        if size > MAX_HEADER_BYTES:
            self._refuse(431)
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_refused or self._ignores_upgrade():
            return
        super().on_message_complete()
        self._in_headers = True
        self._header_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_headers()
        super().connection_lost(exc)

    def _end_headers(self) -> None:
        self._in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, status: int) -> None:
        """Answer in the envelope without a request to answer, and close."""
        was_refused, self._is_refused = self._is_refused, True
        if was_refused or self.transport is None or self.transport.is_closing():
            return
        message = {
            400: "this is not a valid HTTP/1.1 request",
            408: f"the headers did not arrive within {HEADER_DEADLINE_S:.0f} s",
            431: f"the headers have more than {MAX_HEADER_BYTES} bytes",
        }[status]
        body = ApiError(status, message, code="bad_http").envelope()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        # A close at once would reset the connection under a client that still writes, and the
        # reply would be lost with it.
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()
