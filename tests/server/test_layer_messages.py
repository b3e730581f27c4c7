"""What plugins' middleware and routes send and hand on that is no ASGI, or not in its time: it is
told whose it is, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.routing import Mount

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from hookserve.hookspecs import Endpoint, hookimpl
from http_front import exchange, listening, post
from scripted_engine import say

Change = Callable[[Any], Any]


class Sending:
    """A plugin whose layer sends what the header ``x-send`` of a request names in place of the
    reply's own messages."""

    @hookimpl
    def middleware(self) -> Any:
        class Layer:
            def __init__(self, app: Any) -> None:
                self.app = app

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                name = dict(scope["headers"]).get(b"x-send", b"").decode()
                change = CHANGES.get(name, lambda message: [message])

                async def sending(message: Any) -> None:
                    for each in change(message):
                        await send(each)

                await self.app(scope, receive, sending)

        return Layer


def _with_header(name: Any, value: Any) -> Change:
    def change(message: Any) -> list[Any]:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (name, value)]}
        return [message]

    return change


def _at_start(**changes: Any) -> Change:
    return lambda m: [{**m, **changes} if m["type"] == "http.response.start" else m]


def _at_body(**changes: Any) -> Change:
    return lambda m: [{**m, **changes} if m["type"] == "http.response.body" else m]


CHANGES: dict[str, Change] = {
    "text": lambda m: ["hello"],
    "no type": lambda m: [{}],
    "text status": _at_start(status="200"),
    "odd status": _at_start(status=20),
    "text header": _with_header("x-a", "b"),
    "split header": _with_header(b"x-a", b"b\r\nset-cookie: a=b"),
    "odd length": _with_header(b"content-length", b"many"),
    "body alone": lambda m: [m] if m["type"] == "http.response.body" else [],
    # From here on the reply has begun when it is noticed.
    "twice": lambda m: [m, m] if m["type"] == "http.response.start" else [m],
    "text body": _at_body(body="text"),
    "too short": _with_header(b"content-length", b"3"),
    "too long": _with_header(b"content-length", b"100000"),
}
LATE = ("twice", "text body", "too short", "too long")


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_reply_fails_its_request_and_names_its_layer(
    serve_script: Any, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    body = json.dumps({"prompt": "a", "stream": stream}).encode()

    async def run() -> None:
        async with (
            serve_script(say("ab"), plugins=[Sending()]) as served,
            listening(served.runtime) as port,
        ):
            for name in CHANGES:
                caplog.clear()
                failed = await exchange(port, post(body, f"x-send: {name}"))
                (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
                assert "object:Sending failed at" in line, name
                if name in LATE:
                    assert failed.startswith(b"HTTP/1.1 200 "), name
                    assert not failed.endswith((b"0\r\n\r\n", b"}")), "it looks complete"
                else:
                    assert failed.startswith(b"HTTP/1.1 500 "), name
                    assert b"object:Sending failed with" in failed and b"plugin_error" in failed
            good = await exchange(port, post(body))
            assert good.startswith(b"HTTP/1.1 200 ") and (b"[DONE]" in good or not stream)
            assert served.runtime.client.num_unfinished_requests == 0

    asyncio.run(run())


def test_a_route_that_sends_no_header_is_named_in_a_whole_reply(serve_script: Any) -> None:
    class Odd:
        @hookimpl
        def endpoint(self) -> Endpoint:
            return Endpoint("odd", lambda: self)

        def routes(self) -> list[Any]:
            return [Mount("/odd", self.serve)]

        async def serve(self, scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"x-a", b"1\r\nx-b: 2")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def run() -> None:
        async with (
            serve_script(say("a"), plugins=[Odd()]) as served,
            listening(served.runtime) as port,
        ):
            reply = await exchange(port, post(b"", path="/odd/a"))
            assert reply.startswith(b"HTTP/1.1 500 ") and b"object:Odd failed with" in reply

    asyncio.run(run())


class Handing:
    """A plugin whose layer hands on what ``messages`` makes of a body that it has read."""

    def __init__(self, messages: Callable[[bytes], Callable[[], Awaitable[Any]]]) -> None:
        self.messages = messages

    @hookimpl
    def middleware(self) -> Any:
        plugin = self

        class Layer:
            def __init__(self, app: Any) -> None:
                self.app = app

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                message = await receive()
                assert not message.get("more_body")
                await self.app(scope, plugin.messages(message["body"]), send)

        return Layer


class HandingAgain(Handing):
    pass


def _replay(body: bytes) -> Callable[[], Awaitable[Any]]:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _once_then_none(body: bytes) -> Callable[[], Awaitable[Any]]:
    messages = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        return next(messages, None)

    return receive


@pytest.mark.parametrize("messages", [_replay, _once_then_none])
def test_a_body_that_is_handed_on_from_memory_holds_nobody_up(
    serve_script: Any, messages: Any
) -> None:
    """And a client that leaves is noticed, through two such layers too."""

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        num_steps = 100_000 if request.prompt_token_ids == [97] else 2
        plan = [EngineCoreOutput(request.request_id, [97])] * (num_steps - 1)
        return [*plan, EngineCoreOutput(request.request_id, [97], "length")]

    async def run() -> None:
        plugins = [Handing(messages), HandingAgain(messages)]
        async with (
            serve_script(script, plugins=plugins) as served,
            listening(served.runtime) as port,
        ):
            body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 100}).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(body))
            await reader.readuntil(b"data: ")
            beside = await exchange(port, post(b'{"prompt": "b"}'))
            assert beside.startswith(b"HTTP/1.1 200 ")
            assert not served.engine.aborted
            writer.close()
            while not served.engine.aborted:
                await asyncio.sleep(0.001)
            assert served.runtime.client.num_unfinished_requests == 0

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_body_that_never_ends_holds_its_own_request_up_alone(serve_script: Any) -> None:
    is_over = False

    def endless(body: bytes) -> Callable[[], Awaitable[Any]]:
        async def receive() -> Any:
            more = not is_over and b"endless" in body
            return {"type": "http.request", "body": b"" if more else body, "more_body": more}

        return receive

    async def run() -> None:
        nonlocal is_over
        async with (
            serve_script(say("ab"), plugins=[Handing(endless)]) as served,
            listening(served.runtime) as port,
        ):
            held_up = asyncio.create_task(exchange(port, post(b'{"prompt": "endless"}')))
            reply = await exchange(port, post(b'{"prompt": "b"}'))
            assert reply.startswith(b"HTTP/1.1 200 ") and not held_up.done()
            is_over = True
            assert (await held_up).startswith(b"HTTP/1.1 200 ")

    asyncio.run(asyncio.wait_for(run(), 20))


def test_what_is_no_part_of_a_body_fails_its_request(serve_script: Any) -> None:
    def odd(body: bytes) -> Callable[[], Awaitable[Any]]:
        async def receive() -> Any:
            return {} if b"none" in body else body

        return receive

    async def run() -> None:
        async with (
            serve_script(say("ab"), plugins=[Handing(odd)]) as served,
            listening(served.runtime) as port,
        ):
            for body in (b'{"prompt": "none"}', b'{"prompt": "bytes"}'):
                reply = await exchange(port, post(body))
                assert reply.startswith(b"HTTP/1.1 500 ") and b"object:Handing failed" in reply

    asyncio.run(run())
