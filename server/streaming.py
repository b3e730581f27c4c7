"""Server-sent events, and the watch for clients that go away.

An event is sent the moment that it exists; nothing here waits to join two. What the events say is
the routes' business.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .errors import ApiError
from .generation import ClientGone, Generation

DONE = b"data: [DONE]\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """The reply to ``stream: true``.

    The status is sent with the first event, so that an error before it is a proper reply. A later
    one is an event of its own, and then there is no ``[DONE]``.
    """

    def __init__(
        self,
        generation: Generation,
        events: AsyncIterator[bytes],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # Not calling Response.__init__: it renders a body, and there is none to render.
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            *_HEADERS,
            *((k.encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items()),
        ]
        self._generation = generation
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False
        with watch_disconnect(receive, self._generation.cancel):
            try:
                async with self._generation:
                    async for event in self._events:
                        if not is_started:
                            is_started = True
                            await send(self._start())
                        await send(_body(event))
                    await send(_body(DONE, more=False))
            except ClientGone:
                return
            except ApiError as error:
                if not is_started:
                    raise
                await send(_body(b"data: " + error.envelope() + b"\n\n", more=False))

    def _start(self) -> Message:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }


def _body(event: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": event, "more_body": more}


@contextlib.contextmanager
def watch_disconnect(receive: Receive, on_gone: Callable[[], None]) -> Iterator[None]:
    """Within the block, ``on_gone`` is called once if the client closes the connection.

    The request's body must have been read already.
    """
    task = asyncio.create_task(_watch(receive, on_gone), name="watch-disconnect")
    try:
        yield
    finally:
        task.cancel()


async def until_gone(
    receive: Receive, generation: Generation, collect: Coroutine[Any, Any, bytes]
) -> bytes:
    """The body of a reply that is not streamed; empty if the client left before it was ready.

    Raises:
        ApiError: the engine could not go on.
    """
    with watch_disconnect(receive, generation.cancel):
        try:
            async with generation:
                return await collect
        except ClientGone:
            return b""
        finally:
            collect.close()


async def _watch(receive: Receive, on_gone: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    on_gone()
