"""Middleware of plugins and of ``--middleware``: what it sees, what it changes, how it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from hookserve.hookspecs import Denied, Endpoint, RequiredPluginError, hookimpl
from hookserve.hookspecs.context import running
from hookserve.server.health import Problem
from hookserve.server.secret import Secret
from http_front import exchange, listening, post
from scripted_engine import say

SOURCE = """
    import asyncio

    class Plain:
        '''Passes everything on, and says in a header that it was here.'''

        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            async def marked(message):
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"x-seen", b"plain")]
                await send(message)
            await self.app(scope, receive, marked)

    async def function(request, call_next):
        reply = await call_next(request)
        reply.headers.append("x-seen", "function")
        return reply

    def make(app):
        return Plain(app)

    async def asgi(scope, receive, send):
        pass

    def nothing(app):
        return None

    class Broken:
        def __init__(self, app):
            raise OSError("no licence")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import textwrap

    (tmp_path / "some_layers.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)


class Marking:
    """A plugin with one layer that notes what passes it, and writes its name into replies."""

    def __init__(self, name: str = "hook") -> None:
        self.name = name
        self.paths: list[str] = []
        self.owners: list[Any] = []

    @hookimpl
    def middleware(self) -> Any:
        plugin = self

        class Layer:
            def __init__(self, app: Any) -> None:
                self.app = app

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                plugin.paths.append(scope["path"])
                plugin.owners.append(running())

                async def marked(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        seen = (b"x-seen", plugin.name.encode())
                        message["headers"] = [*message["headers"], seen]
                    await send(message)

                await self.app(scope, receive, marked)

        return Layer


class AnotherMarking(Marking):
    pass


def test_layers_are_called_in_order_with_their_owner_running(serve_script: Any) -> None:
    async def run() -> None:
        first, second = AnotherMarking("another"), Marking("marking")
        paths = ("some_layers:Plain", "some_layers.function", "some_layers:Plain")
        async with serve_script(
            say("ab"), plugins=[second, first], settings={"middleware": paths}
        ) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["choices"][0]["text"] == "ab"
            # The innermost is the first to see a reply.
            seen = reply.headers.get_list("x-seen")
            assert seen == ["marking", "another", "plain", "function"]
            (owner,) = first.owners
            assert owner.identity == "object:AnotherMarking"

    asyncio.run(run())


def test_the_same_one_twice_is_there_once(serve_script: Any) -> None:
    class Twice:
        @hookimpl
        def middleware(self) -> Any:
            return ["some_layers:Plain", "some_layers.function"]

    async def run() -> None:
        settings = {"middleware": ("some_layers.Plain",)}
        async with serve_script(say("a"), plugins=[Twice()], settings=settings) as served:
            reply = await served.http.get("/v1/models")
            assert reply.headers.get_list("x-seen") == ["function", "plain"]

    asyncio.run(run())


def test_a_layer_sees_no_probe_no_early_and_no_unknown_request(serve_script: Any) -> None:
    async def run() -> None:
        plugin = Marking()
        settings = {"api_key": (Secret("k"),)}
        async with serve_script(say("a"), plugins=[plugin], settings=settings) as served:
            for path in ("/livez", "/readyz", "/health", "/version", "/v1/models", "/nowhere"):
                await served.http.get(path)
            big = await served.http.post(
                "/v1/completions",
                content=b"",
                headers={"content-length": "999999999", "authorization": "Bearer k"},
            )
            assert big.status_code == 413
            assert plugin.paths == []
            await served.http.get("/v1/models", headers={"authorization": "Bearer k"})
            assert plugin.paths == ["/v1/models"]
            served.runtime.health.set_draining()
            await served.http.get("/v1/models", headers={"authorization": "Bearer k"})
            assert plugin.paths == ["/v1/models"]

    asyncio.run(run())


def test_nothing_is_served_before_the_start_is_complete(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while another plugin's ``init_state`` takes its time."""

    async def run() -> None:
        plugin = Marking()
        async with serve_script(say("a"), plugins=[plugin]) as served:
            health = served.runtime.health
            loading = Problem("loading", "the model is loading")
            monkeypatch.setattr(health, "problem", lambda: loading)
            for path in ("/v1/models", "/v1/completions", "/metrics", "/v1/plugins", "/nowhere"):
                assert (await served.http.get(path)).status_code == 503
            for path in ("/livez", "/version"):
                assert (await served.http.get(path)).status_code == 200
            assert plugin.paths == []
            monkeypatch.undo()
            assert (await served.http.get("/v1/models")).status_code == 200
            assert plugin.paths == ["/v1/models"]

    asyncio.run(run())


# -- streams ---------------------------------------------------------------------------------------

PASS_THROUGH = [("some_layers:Plain",), ("some_layers:function",), ("some_layers:make",)]


def endless(request: AddRequest) -> list[EngineCoreOutput]:
    return [EngineCoreOutput(request.request_id, [97])] * 100_000


@pytest.mark.parametrize("paths", PASS_THROUGH, ids=str)
def test_a_stream_passes_chunk_by_chunk_and_ends_with_its_client(
    serve_script: Any, paths: tuple[str, ...]
) -> None:
    async def run() -> None:
        settings = {"middleware": paths}
        async with serve_script(endless, plugins=[Marking()], settings=settings) as served:
            served.engine.gate.clear()
            body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 100}).encode()
            async with listening(served.runtime) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(post(body))
                async with asyncio.timeout(5):
                    while not served.engine.requests:
                        await asyncio.sleep(0.001)
                    served.engine.gate.set()
                    first = await reader.readuntil(b"\n\n")
                    assert b" 200 " in first.splitlines()[0]
                    # The first event is here while the engine goes on without an end.
                    assert b'"text":"a"' in await reader.readuntil(b"\n\n")
                    writer.close()
                async with asyncio.timeout(1):
                    while not served.engine.aborted:
                        await asyncio.sleep(0.001)
            assert served.runtime.client.num_unfinished_requests == 0

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_what_passes_layers_is_what_would_come_without_them(
    serve_script: Any, stream: bool
) -> None:
    async def run(paths: tuple[str, ...]) -> list[Any]:
        async with serve_script(say("hello"), settings={"middleware": paths}) as served:
            body = {"prompt": "a", "stream": stream}
            reply = await served.http.post("/v1/completions", json=body)
            lines = [line for line in reply.text.splitlines() if line.startswith(("data: {", "{"))]
            events = [json.loads(line.removeprefix("data: ")) for line in lines]
            assert reply.text.rstrip().endswith("[DONE]") is stream
            return [(each["choices"], each.get("usage")) for each in events]

    plain = asyncio.run(run(()))
    assert len(plain) >= (5 if stream else 1)
    assert asyncio.run(run(tuple(path for (path,) in PASS_THROUGH))) == plain


# -- failures --------------------------------------------------------------------------------------


class Faulty:
    """A plugin whose layer fails where the header ``x-fail`` of a request says."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error

    @hookimpl
    def middleware(self) -> Any:
        plugin = self

        class Layer:
            def __init__(self, app: Any) -> None:
                self.app = app

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                where = dict(scope["headers"]).get(b"x-fail", b"").decode()
                await plugin.serve(where, self.app, scope, receive, send)

        return Layer

    async def serve(self, where: str, app: Any, scope: Any, receive: Any, send: Any) -> None:
        async def bad_receive() -> Any:
            raise self.error()

        async def bad_send(message: Any) -> None:
            raise self.error()

        async def late_send(message: Any) -> None:
            if message["type"] == "http.response.body":
                raise self.error()
            await send(message)

        if where == "before":
            raise self.error()
        if where != "no reply":
            receive = bad_receive if where == "receive" else receive
            await app(scope, receive, {"send": bad_send, "late": late_send}.get(where, send))
        if where == "after":
            raise self.error()


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("secret detail"),
    lambda: SystemExit(3),
    lambda: asyncio.CancelledError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=["ValueError", "SystemExit", "CancelledError"])
def test_a_layer_that_fails_fails_its_request_alone_and_is_named(
    serve_script: Any, caplog: pytest.LogCaptureFixture, error: Callable[[], BaseException]
) -> None:
    async def try_one(served: Any, port: int, where: str, stream: bool) -> None:
        caplog.clear()
        body = json.dumps({"prompt": "a", "stream": stream}).encode()
        failed, good = await asyncio.gather(
            exchange(port, post(body, f"x-fail: {where}")), exchange(port, post(body))
        )
        assert good.startswith(b"HTTP/1.1 200 ") and (b"[DONE]" in good or not stream)
        assert b"secret detail" not in failed
        if where == "late":
            assert failed.startswith(b"HTTP/1.1 200 ") and not failed.endswith(b"0\r\n\r\n")
        elif where == "after":
            assert failed.startswith(b"HTTP/1.1 200 ")
        else:
            assert failed.startswith(b"HTTP/1.1 500 ") and b"plugin_error" in failed
            assert b"object:Faulty" in failed
        assert served.runtime.client.num_unfinished_requests == 0
        (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "object:Faulty" in line.getMessage()

    async def run() -> None:
        plugins = [Faulty(error), Marking()]
        async with (
            serve_script(say("ab"), plugins=plugins) as served,
            listening(served.runtime) as port,
        ):
            for where in ("before", "receive", "send", "late", "after", "no reply"):
                for stream in (True, False):
                    await try_one(served, port, where, stream)

    asyncio.run(run())


class Elsewhere:
    """A plugin with a route that fails by itself, behind another plugin's layer."""

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("elsewhere", lambda: self)

    def routes(self) -> list[Route]:
        return [Route("/fails", self.fail), Route("/teapot", self.teapot)]

    async def fail(self, request: Request) -> None:
        raise ZeroDivisionError

    async def teapot(self, request: Request) -> None:
        raise HTTPException(418, "short and stout")


def test_what_passes_through_a_layer_is_not_its_failure(
    serve_script: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*given: Any) -> None:
        raise LookupError("a fault of the server's own")

    async def run() -> None:
        settings = {"middleware": ("some_layers:Plain", "some_layers:function")}
        plugins = [Marking(), Elsewhere()]
        async with serve_script(say("a"), plugins=plugins, settings=settings) as served:
            fails = await served.http.get("/fails")
            assert "object:Elsewhere" in fails.json()["error"]["message"]
            teapot = await served.http.get("/teapot")
            assert (teapot.status_code, teapot.headers.get_list("x-seen")[0]) == (418, "hook")
            monkeypatch.setattr("hookserve.server.prompt_encoder.PromptEncoder.encode", broken)
            own = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert own.status_code == 500
            assert own.json()["error"]["code"] is None, "an internal error, nobody's plugin's"

    asyncio.run(run())
    assert not any("Marking failed" in record.getMessage() for record in caplog.records)
    assert not any("some_layers" in record.getMessage() for record in caplog.records)


class Reading:
    """A plugin whose layer reads the body itself, and one path of which it refuses."""

    @hookimpl
    def middleware(self) -> Any:
        async def read(request: Request, call_next: Any) -> Any:
            await request.body()
            if request.url.path == "/teapot":
                raise HTTPException(418, "short and stout")
            if request.url.path == "/mine":
                return PlainTextResponse("answered by the layer")
            return await call_next(request)

        return read


def test_a_layer_may_read_answer_and_refuse(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Reading()]) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["choices"][0]["text"] == "ab"
            assert (await served.http.get("/mine")).text == "answered by the layer"
            teapot = await served.http.get("/teapot")
            assert teapot.status_code == 418
            assert teapot.json()["error"]["message"] == "short and stout"

            async def too_much() -> Any:
                for _ in range(40):
                    yield b"x" * 2**20

            reply = await served.http.post("/v1/completions", content=too_much())
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")

    asyncio.run(run())


# -- building --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["some_layers:Broken", "some_layers:asgi", "some_layers:gone"])
def test_a_layer_that_cannot_be_built_puts_its_plugin_out(serve_script: Any, target: str) -> None:
    class Half:
        @hookimpl
        def middleware(self) -> Any:
            return ["some_layers:Plain", target]

    async def run() -> None:
        async with serve_script(say("a"), plugins=[Half()]) as served:
            reply = await served.http.get("/v1/models")
            assert reply.status_code == 200
            assert "x-seen" not in reply.headers, "all of the plugin is out"
            (report,) = [
                each for each in served.runtime.host.describe() if each.identity == "object:Half"
            ]
            assert report.state == "out"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("some_layers:Broken", "no licence"),
        ("some_layers:asgi", "request, call_next"),
        ("some_layers:nothing", "NoneType"),
        ("some_layers:gone", "no attribute 'gone'"),
        ("no_such_module.Layer", "No module named"),
        ("word", "word"),
    ],
)
def test_one_that_is_named_and_cannot_be_built_stops_the_start(
    serve_script: Any, path: str, said: str
) -> None:
    async def run() -> None:
        async with serve_script(say("a"), settings={"middleware": (path,)}):
            pass

    with pytest.raises(RequiredPluginError) as caught:
        asyncio.run(run())
    assert said in str(caught.value) and "--middleware" in str(caught.value)
    assert caught.value.exit_code == 78


def test_layers_of_a_plugin_that_goes_out_are_passed_by(serve_script: Any) -> None:
    async def run() -> None:
        plugins = [Marking("one"), AnotherMarking("two")]
        async with serve_script(say("a"), plugins=plugins) as served:
            served.runtime.host.deny(Denied("object:Marking", "engine", "import", "gone"))
            served.runtime.layers.drop_inactive()
            reply = await served.http.get("/v1/models")
            assert reply.headers.get_list("x-seen") == ["two"]

    asyncio.run(run())
