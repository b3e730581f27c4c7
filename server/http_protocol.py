"""``LimitedHttpProtocol``: uvicorn's HTTP/1.1 protocol with the bounds and refusals that it lacks.

Size and duration of headers, framings that two servers could read differently, and how a
connection ends whose client still writes. Bodies are ``limits``' business, routes the
application's.

A client that ends its side of the connection counts as gone, as it does for most servers: nothing
tells one that only says that it will write no more from one that was closed, and the engine must
not go on for nobody. Its request is aborted, and what was not sent is dropped.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError, cut

MAX_HEADER_BYTES = 64 * 2**10
"""Request line and headers together."""
HEADER_DEADLINE_S = 30.0
"""From the first byte of a request to the end of its headers."""
MAX_DROPPED_BYTES = 256 * 2**20
DROP_DEADLINE_S = 30.0
DROP_IDLE_S = 2.0
"""What is read and dropped of a request that was answered before its end, so that a client that
writes first and reads then finds its reply: bytes, seconds, seconds without a byte."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """A request that offers another protocol (``Upgrade``; some clients do with each) is answered
    as if it did not: there is none to change to, unless plugins' routes speak WebSocket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._in_request = False
        self._is_refused = False
        self._is_ending = False
        self._dropped: _Dropped | None = None

    def data_received(self, data: bytes) -> None:
        if self._dropped is not None and not self._dropped.count(len(data)):
            self.transport.close()
            return
        if self._is_refused:
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_timer is None:
                timeout = ApiError(
                    408,
                    f"the headers did not arrive within {HEADER_DEADLINE_S:.0f} s",
                    code="bad_http",
                )
                self._header_timer = self.loop.call_later(HEADER_DEADLINE_S, self._refuse, timeout)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(ApiError(400, "this is not a valid HTTP/1.1 request", code="bad_http"))
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(_too_many_headers())

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            else:
                return
            if self._opens_websocket():
                if not self._is_refused:
                    self.handle_websocket_upgrade()
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
        if self.parser.get_method() == b"CONNECT" or self._opens_websocket():
            return False
        return bool(self.parser.should_upgrade())

    def _opens_websocket(self) -> bool:
        """Whether the connection is a WebSocket's from here on; not while a reply is due, and with
        GET alone (RFC 6455, 4.1): uvicorn answers nothing to another method."""
        if not self.parser.should_upgrade() or not self._should_upgrade():
            return False
        return self.parser.get_method() == b"GET" and not self._is_replying()

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
        refusal = _too_many_headers() if size > MAX_HEADER_BYTES else self._find_wrong_header()
        if refusal is not None:
            self._refuse(refusal)
            return
        super().on_headers_complete()  # raises for a target that is no URL
        if self._opens_websocket():
            return
        self._in_request = True
        self.cycle.transport = cast("asyncio.Transport", _PatientTransport(self))

    def _find_wrong_header(self) -> ApiError | None:
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            return ApiError(505, f"HTTP/{cut(version)} is not spoken here", code="bad_http")
        values: dict[bytes, list[bytes]] = {}
        for name, value in self.headers:
            values.setdefault(name, []).append(value)
        return _find_wrong_framing(version, values)

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_refused or self._ignores_upgrade() or self._opens_websocket():
            return
        self._in_request = False
        if self._dropped is not None:
            self._end_dropping()
        super().on_message_complete()
        self._in_headers = True
        self._header_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_request and self.cycle.response_complete:
            self._unset_keepalive_if_required()
            self._drop_the_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_headers()
        if self._dropped is not None:
            self._dropped.cancel()
        super().connection_lost(exc)

    def _end_headers(self) -> None:
        self._in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    # -- ending -----------------------------------------------------------------------------------

    def close_patiently(self) -> None:
        """Close the connection once the client has written all of its request."""
        if not self._in_request:
            self.transport.close()
            return
        self._is_ending = True
        self._drop_the_rest()

    def _is_replying(self) -> bool:
        """Whether a reply is due, or has begun, to a request before the one that is being read."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return self.cycle.response_started or not self._in_request or bool(self.pipeline)

    def _drop_the_rest(self) -> None:
        if self._dropped is None and not self.transport.is_closing():
            self._dropped = _Dropped(self.loop, self.transport)
            self.flow.resume_reading()

    def _end_dropping(self) -> None:
        assert self._dropped is not None
        self._dropped.cancel()
        self._dropped = None
        if self._is_ending:
            self.transport.close()
        elif not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _refuse(self, refusal: ApiError) -> None:
        """Answer in the envelope without a request to answer, and close."""
        was_refused, self._is_refused = self._is_refused, True
        if was_refused or self.transport is None or self.transport.is_closing():
            return
        if self._is_replying():
            self.transport.close()  # anything written now would stand in the midst of that reply
            return
        if self._in_request:
            self.cycle.disconnected = True  # the application waits for the rest of the body
            self.cycle.message_event.set()
        body = refusal.envelope()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s"
            % (refusal.status, HTTPStatus(refusal.status).phrase.encode(), len(body), body)
        )
        # A close at once would reset the connection under a client that still writes, and the
        # reply would be lost with it.
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._drop_the_rest()
        else:
            self.transport.close()


class _Dropped:
    """What a client still sends that nobody will read, and how long it may."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._left = MAX_DROPPED_BYTES
        self._deadline = loop.call_later(DROP_DEADLINE_S, transport.close)
        self._idle = loop.call_later(DROP_IDLE_S, transport.close)

    def count(self, num_bytes: int) -> bool:
        """Whether there may be more."""
        self._left -= num_bytes
        self._idle.cancel()
        self._idle = self._loop.call_later(DROP_IDLE_S, self._transport.close)
        return self._left >= 0

    def cancel(self) -> None:
        self._deadline.cancel()
        self._idle.cancel()


class _PatientTransport:
    """The connection as one reply sees it: its ``close`` waits for the client to have written.
    Everything else is the transport's own."""

    def __init__(self, protocol: LimitedHttpProtocol) -> None:
        self.close = protocol.close_patiently
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing


def _too_many_headers() -> ApiError:
    return ApiError(431, f"the headers have more than {MAX_HEADER_BYTES} bytes", code="bad_http")


def _find_wrong_framing(version: str, values: dict[bytes, list[bytes]]) -> ApiError | None:
    """What the parser lets pass and another server would read differently, or not at all."""
    if b"transfer-encoding" in values:
        given = b", ".join(values[b"transfer-encoding"]).decode("latin-1")
        codings = [name for part in given.split(",") if (name := part.strip().lower())]
        if version == "1.0":
            return ApiError(400, "HTTP/1.0 has no transfer-encoding", code="bad_http")
        if codings != ["chunked"]:
            return ApiError(
                501,
                f"transfer-encoding {cut(given)!r} is not supported; send chunked alone",
                code="unsupported_transfer_encoding",
            )
    if len(values.get(b"host", ())) > 1:
        return ApiError(400, "the request has more than one host header", code="bad_http")
    expected = [value.decode("latin-1") for value in values.get(b"expect", ())]
    if version == "1.1" and any(value.strip().lower() != "100-continue" for value in expected):
        return ApiError(417, f"expect {cut(expected[0])!r} cannot be met", code="bad_http")
    return None
