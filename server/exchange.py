"""``Exchange``: how far the reply to one request is that a plugin's code gives, and whether what it
sends is one at all.

ASGI servers fail at a wrong message somewhere inside of them, when it is too late to say whose it
is. What is right is what the ASGI specification says (HTTP, version 2.3).
"""

from __future__ import annotations

import re
from typing import Any

from starlette.types import Message, Receive, Scope, Send

_NOT_IN_NAME = re.compile(rb'[\x00-\x20\x7f()<>@,;:\[\]={}"\\]')
_NOT_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NO_BODY = (204, 304)


class Exchange:
    """Hand its ``receive`` and ``send`` to the plugin. Whoever is done without a reply must have
    lost the client; a WebSocket has none.

    Attributes:
        is_started: whether the reply has begun, or the WebSocket is open.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._has_a_reply = scope["type"] == "http"
        self._has_a_body = scope.get("method") != "HEAD"
        self._receive = receive
        self._send = send
        self.is_started = False
        self._is_complete = False
        self._is_gone = False
        self._left: int | None = None
        """Bytes that the reply has announced and not sent yet."""

    async def receive(self) -> Message:
        message = await self._receive()
        self._is_gone = self._is_gone or message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        """
        Raises:
            TypeError, ValueError, RuntimeError: it is no message that could be sent now.
        """
        if self._has_a_reply:
            self._check(message)
        await self._send(message)
        if message["type"] == "websocket.accept":
            self.is_started = True
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True

    def _check(self, message: Any) -> None:
        kind = message.get("type") if isinstance(message, dict) else None
        if kind is None:
            raise TypeError(f"it sent a {type(message).__name__}; expected an ASGI message")
        if kind == "http.response.start":
            self._check_start(message)
        elif kind == "http.response.body":
            self._check_body(message)

    def _check_start(self, message: Message) -> None:
        if self.is_started:
            raise RuntimeError("it began the reply a second time")
        status = message.get("status")
        if not isinstance(status, int) or not 100 <= status <= 599:
            raise ValueError(f"its reply has the status {str(status)[:40]!r}; expected 100 to 599")
        announced = _check_headers(message.get("headers", ()))
        if self._has_a_body and status not in _NO_BODY:
            self._left = announced
        self.is_started = True

    def _check_body(self, message: Message) -> None:
        if not self.is_started:
            raise RuntimeError("it sent a body before it began the reply")
        if self._is_complete:
            raise RuntimeError("it sent more after the end of its reply")
        body = message.get("body", b"")
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"it sent a body that is a {type(body).__name__}; expected bytes")
        if self._left is None:
            return
        self._left -= len(body)
        if self._left < 0 or (self._left and not message.get("more_body", False)):
            what = "shorter" if self._left > 0 else "longer"
            raise RuntimeError(f"its reply is {what} than the content-length that it announced")

    def check_end(self) -> None:
        """Raises:
        RuntimeError: the plugin's code ended, and its reply did not.
        """
        if self._has_a_reply and not (self._is_complete or self._is_gone):
            what = "the end of its reply" if self.is_started else "a reply"
            raise RuntimeError(f"the route ended without {what}")


def _check_headers(headers: Any) -> int | None:
    """The length that they announce.

    Raises:
        TypeError, ValueError: they could not be sent, or would be read as more than they are.
    """
    announced = None
    for name, value in headers:
        if not (isinstance(name, bytes) and isinstance(value, bytes)):
            raise TypeError(f"its reply has the header {str(name)[:80]!r}; expected pairs of bytes")
        if not name or _NOT_IN_NAME.search(name) or _NOT_IN_VALUE.search(value):
            raise ValueError(f"its reply has a header that is none: {name[:80]!r}")
        if name.lower() == b"content-length":
            if not value.isdigit():
                raise ValueError(f"its reply announces {value[:40]!r} bytes; expected a number")
            announced = int(value)
    return announced
