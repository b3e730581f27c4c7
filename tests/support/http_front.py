"""The front's real HTTP server over a runtime that a test made, and raw exchanges with it.

For what only a socket shows: framing, half-closed connections, replies that arrive or do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

from hookserve.server.serve import HttpServer

REPLY_TIMEOUT_S = 20.0


@contextlib.asynccontextmanager
async def listening(runtime: Any) -> AsyncIterator[int]:
    """Serve the runtime's application at a free port, which is what this yields."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        http = HttpServer(runtime)
        task = asyncio.create_task(http.serve(sockets=[sock]))
        try:
            yield sock.getsockname()[1]
        finally:
            http.should_exit = True
            await task


async def exchange(port: int, *pieces: bytes, half_close: bool = False) -> bytes:
    """Send the pieces, and return all that comes until the server closes the connection.

    Args:
        half_close: say after the last piece that nothing more will be sent.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if half_close:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), REPLY_TIMEOUT_S)
    finally:
        writer.close()


def post(body: bytes, *headers: str, path: str = "/v1/completions") -> bytes:
    """A request whose connection ends with its reply; the length is given if nothing else is."""
    framing = ("transfer-encoding", "content-length")
    given = any(header.lower().startswith(framing) for header in headers)
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: a",
        "Connection: close",
        *([] if given else [f"Content-Length: {len(body)}"]),
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1") + body
