"""A small HTTP/1.1 client over asyncio streams, for the verbs that talk to a running server.

It takes little of the processor that a server on the same machine needs. One request a
connection, JSON in, JSON or server-sent events out; both ways of framing a body are understood.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hookserve.engine.errors import EX_UNAVAILABLE, HookserveError, UsageError

LINE_LIMIT = 4 * 2**20
"""Bytes of the longest line of a reply that is read."""


class ServerUnreachableError(HookserveError):
    """Nobody answers at the address."""

    exit_code = EX_UNAVAILABLE


class ReplyError(HookserveError):
    """The server answered with an error, or with what is no OpenAI-compatible reply."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Address:
    """Where a server is: the parts of a URL such as ``http://127.0.0.1:8000``."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(f"--url {url!r}: expected a URL such as http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


class Reply:
    """One reply: its status, and its body line by line as it comes."""

    def __init__(self, status: int, headers: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self._headers = headers
        self._reader = reader

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            while line := await _read_line(self._reader):
                size = _number(line.split(b";")[0].decode("latin-1"), 16)
                if size == 0:
                    return
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            raise ConnectionError("the reply ended in its middle")
        left = _number(self._headers.get("content-length", "-1"), 10)
        while left != 0:
            piece = await self._reader.read(65536 if left < 0 else min(left, 65536))
            if not piece and left > 0:
                raise ConnectionError("the reply ended in its middle")
            if not piece:
                return
            left -= len(piece) if left > 0 else 0
            yield piece

    async def lines(self) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
        if rest:
            yield rest

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The JSON of each server-sent event, until ``[DONE]``.

        Raises:
            ReplyError: the status is no success, or an event carries an error.
        """
        await self._check()
        async for line in self.lines():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = _decode(data)
            if not isinstance(event, dict):
                raise ReplyError(f"the server sent an event that is no object: {data[:80]!r}")
            if "error" in event:
                raise ReplyError(_message_of(event))
            yield event

    async def json(self) -> Any:
        """The whole body.

        Raises:
            ReplyError: the status is no success, or the body is no JSON.
        """
        await self._check()
        return _decode(b"".join([piece async for piece in self._pieces()]))

    async def _check(self) -> None:
        if self.status == 200:
            return
        body = b"".join([piece async for piece in self._pieces()])
        try:
            text = _message_of(json.loads(body))
        except ValueError:
            text = body[:200].decode("utf-8", "replace")
        raise ReplyError(f"the server answered {self.status}: {text}", self.status)


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ReplyError(f"the server answered with what is no JSON: {content[:80]!r}") from error


def _number(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise ReplyError(f"the reply is no HTTP: {text[:80]!r} is no length") from error


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError as error:  # what asyncio makes of a line beyond its limit
        raise ReplyError(f"the reply has a line of more than {LINE_LIMIT} bytes") from error


def _message_of(event: Any) -> str:
    error = event.get("error", event) if isinstance(event, dict) else event
    return str(error.get("message", error) if isinstance(error, dict) else error)[:400]


@asynccontextmanager
async def request(
    address: Address, method: str, path: str, body: Any = None, *, api_key: str | None = None
) -> AsyncIterator[Reply]:
    """Send one request; the connection is closed on leaving the block.

    Raises:
        ServerUnreachableError: nobody listens, or the connection broke.
    """
    content = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method} {address.prefix}{path} HTTP/1.1",
        f"Host: {address.authority}",
        "Connection: close",
        f"Content-Length: {len(content)}",
        *(["Content-Type: application/json"] if content else []),
        *([f"Authorization: Bearer {api_key}"] if api_key else []),
    ]
    try:
        reader, writer = await asyncio.open_connection(
            address.host,
            address.port,
            limit=LINE_LIMIT,
            ssl=_tls_context() if address.tls else None,
        )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServerUnreachableError(f"no server answers at {address}: {reason}") from error
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await writer.drain()
        yield await _read_head(reader)
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise ServerUnreachableError(f"the connection to {address} broke: {error!r}") from error
    finally:
        writer.close()


def _tls_context() -> Any:
    import ssl

    return ssl.create_default_context()


async def _read_head(reader: asyncio.StreamReader) -> Reply:
    first = (await _read_line(reader)).split(None, 2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/") or not first[1].isdigit():
        raise ConnectionError("the reply is no HTTP")
    headers: dict[str, str] = {}
    while (line := await _read_line(reader)) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return Reply(int(first[1]), headers, reader)


async def model_names(address: Address, api_key: str | None = None) -> list[str]:
    """The names of the models that the server lists.

    Raises:
        ReplyError: it lists none.
        ServerUnreachableError: as ``request``.
    """
    async with request(address, "GET", "/v1/models", api_key=api_key) as reply:
        found = await reply.json()
    try:
        names = [str(model["id"]) for model in found["data"]]
    except (KeyError, TypeError):
        names = []
    if not names:
        raise ReplyError(f"{address} lists no model at /v1/models; give one with --model")
    return names
