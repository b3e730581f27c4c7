"""A small OpenAI-compatible server on a thread, for the verbs that are clients.

It answers from a script and keeps what it was asked. Only the standard library, so that a test of
our client does not lean on our server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeOpenAI:
    """A context manager. ``pieces`` are the texts of a stream, one event each; an object is a whole
    choice of a chat."""

    def __init__(
        self,
        *,
        pieces: tuple[str | dict[str, Any], ...] = ("Hel", "lo"),
        models: tuple[str, ...] = ("fake",),
        error: tuple[int, str] | None = None,
        cut: bool = False,
        chunked: bool = True,
        before_piece: Callable[[int], None] = lambda index: None,
    ) -> None:
        self.pieces, self.models, self.error, self.cut = pieces, models, error, cut
        self.chunked, self.before_piece = chunked, before_piece
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open_now = self.most_open = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer._get(self)

            def do_POST(self) -> None:
                outer._post(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _reply(self, handler: BaseHTTPRequestHandler, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.headers.append(dict(handler.headers))
        if handler.path == "/v1/models":
            self._reply(handler, 200, {"data": [{"id": name} for name in self.models]})
        else:
            self._reply(handler, 404, {"error": {"message": "no such route"}})

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            self.bodies.append(body)
            self.headers.append(dict(handler.headers))
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
        try:
            if self.error is not None:
                self._reply(handler, self.error[0], {"error": {"message": self.error[1]}})
            else:
                self._stream(handler, body)
        finally:
            with self._lock:
                self.open_now -= 1

    def _stream(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header(
            *(("Transfer-Encoding", "chunked") if self.chunked else ("X-Plain", "1"))
        )
        handler.end_headers()
        for index, piece in enumerate(self.pieces):
            self.before_piece(index)
            self._send(handler, {"choices": [self._choice(handler.path, piece)]})
            time.sleep(0.002)  # so that a first and a last token have different times
        if self.cut:
            handler.close_connection = True
            return
        prompt = body.get("prompt", [])
        usage = {"prompt_tokens": len(prompt), "completion_tokens": body.get("max_tokens", 0)}
        if body.get("stream_options", {}).get("include_usage"):
            self._send(handler, {"choices": [], "usage": usage})
        self._write(handler, b"data: [DONE]\n\n")
        if self.chunked:
            handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = True

    def _choice(self, path: str, piece: str | dict[str, Any]) -> dict[str, Any]:
        if isinstance(piece, dict):
            return piece
        return {"delta": {"content": piece}} if "chat" in path else {"text": piece}

    def _send(self, handler: BaseHTTPRequestHandler, event: dict[str, Any]) -> None:
        self._write(handler, f"data: {json.dumps(event)}\n\n".encode())

    def _write(self, handler: BaseHTTPRequestHandler, content: bytes) -> None:
        if self.chunked:
            content = f"{len(content):x}\r\n".encode() + content + b"\r\n"
        handler.wfile.write(content)
        handler.wfile.flush()
