"""WebSockets of endpoint plugins that were written for vLLM, spoken by the server's own HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, WebSocket
from starlette.applications import Starlette
from starlette.endpoints import WebSocketEndpoint
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from endpoint_plugins import One
from hookserve.engine.errors import EngineDeadError, InvalidRequestError
from hookserve.server.secret import Secret
from http_front import exchange, listening
from scripted_engine import say


def test_a_websocket_is_spoken_by_the_servers_own_http(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind the keys; what is no upgrade, or is asked of another path, is HTTP as before."""

    def attach(app: FastAPI) -> None:
        @app.websocket("/v1/talk/{name}")
        async def talk(websocket: WebSocket, name: str) -> None:
            await websocket.accept()
            said = await websocket.receive_text()
            await websocket.send_text(f"{name}: {said} {websocket.app.state.mine}")
            raise ZeroDivisionError

    async def run() -> None:
        plugin = One(attach)
        settings = {"api_key": (Secret("k"),)}
        async with (
            serve_script(say("ab"), plugins=[plugin], settings=settings) as served,
            listening(served.runtime) as port,
        ):
            served.runtime.app.state.mine = "mine"
            url, key = f"ws://127.0.0.1:{port}/v1/talk/to", {"authorization": "Bearer k"}
            with pytest.raises(InvalidStatus, match="401"):
                await connect(url)
            async with connect(url, additional_headers=key) as talk:
                await talk.send("hi")
                assert await talk.recv() == "to: hi mine"
                with pytest.raises(ConnectionClosedError) as ended:
                    await talk.recv()
            assert ended.value.rcvd is not None and ended.value.rcvd.code == 1011
            async with connect(url, additional_headers=key):
                pass  # gone before it says anything, which is nobody's failure
            with pytest.raises(InvalidStatus, match="403"):
                await connect(f"ws://127.0.0.1:{port}/v1/nothing", additional_headers=key)
            offer = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: h2c"
            assert (await exchange(port, offer + b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            offer = b"POST /v1/models HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close"
            offer += b"\r\nAuthorization: Bearer k\r\nUpgrade: websocket\r\nContent-Length: 2"
            reply = await exchange(port, offer + b"\r\n\r\nab")
            assert reply.startswith(b"HTTP/1.1 405 "), "only GET opens one"
            served.runtime.health.set_draining()
            with pytest.raises(InvalidStatus, match="503"):
                await connect(url, additional_headers=key)

    asyncio.run(run())
    said = "plugin object:One: endpoint vllm:mine failed at '/v1/talk/to'"
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [said]


class Dies(WebSocketEndpoint):
    async def on_connect(self, websocket: WebSocket) -> None:
        await websocket.accept()
        raise EngineDeadError("it died")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineDeadError("it died"), "it died"),
        (InvalidRequestError("no prompt " * 20), ("no prompt " * 20)[:123]),
        (HTTPException(503, "busy"), "503: busy"),
        (None, "it died"),
    ],
    ids=["dead", "refused", "http", "a class"],
)
def test_what_ends_an_open_one_that_is_not_its_plugins_fault_is_told_to_the_client(
    serve_script: Any, error: Exception | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reply is what it gets before it is open, and cannot be given afterwards."""

    def attach(app: FastAPI) -> None:
        @app.websocket("/ws/{is_open}")
        async def talk(websocket: WebSocket, is_open: bool) -> None:
            if is_open:
                await websocket.accept()
            assert error is not None
            raise error

        if error is None:
            app.router.routes.insert(0, WebSocketRoute("/ws/1", Dies))

    async def run() -> None:
        async with (
            serve_script(say("ab"), plugins=[One(attach)]) as served,
            listening(served.runtime) as port,
        ):
            url = f"ws://127.0.0.1:{port}/ws/"
            async with connect(url + "1") as talk:
                with pytest.raises(ConnectionClosedError) as ended:
                    await talk.recv()
            assert ended.value.rcvd is not None
            assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (1011, reason)
            if error is not None:
                with pytest.raises(InvalidStatus) as refused:
                    await connect(url + "0")
                assert b'"error":{"message":' in refused.value.response.body

    asyncio.run(run())
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


def test_one_of_what_is_mounted_is_spoken_too(serve_script: Any) -> None:
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hi")
        await websocket.close()

    def attach(app: FastAPI) -> None:
        app.mount("/sub", Starlette(routes=[WebSocketRoute("/ws", talk)]))

    async def run() -> None:
        async with (
            serve_script(say("ab"), plugins=[One(attach)]) as served,
            listening(served.runtime) as port,
            connect(f"ws://127.0.0.1:{port}/sub/ws") as opened,
        ):
            assert await opened.recv() == "hi"

    asyncio.run(run())
