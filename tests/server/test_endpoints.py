"""Endpoints of plugins beside the built-in ones: precedence, containment, the engine's client."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from hookserve.engine.errors import EngineDeadError, InvalidRequestError, QueueFullError
from hookserve.hookspecs import Endpoint, PluginConflictError, PluginSettings, hookimpl
from hookserve.hookspecs.host import Host
from hookserve.server.endpoint_set import EndpointSet
from hookserve.server.errors import ReplyCutShort
from http_front import listening
from scripted_engine import say


class Routes:
    """An endpoint of one route that answers with a text, or raises."""

    def __init__(self, path: str, method: str = "GET", text: str = "mine") -> None:
        self.path, self.method, self.text = path, method, text
        self.client: Any = None
        self.was_shut_down = False

    def routes(self) -> list[Route]:
        return [Route(self.path, self.answer, methods=[self.method])]

    async def answer(self, request: Request) -> Response:
        if self.text == "raise":
            raise ZeroDivisionError("secret detail")
        return PlainTextResponse(self.text)

    async def init_state(self, engine_client: Any, state: Any, settings: Any) -> None:
        if self.text == "bad init":
            raise RuntimeError("no licence")
        self.client = engine_client
        state.mine = settings.port

    async def shutdown(self) -> None:
        self.was_shut_down = True


class Plugin:
    def __init__(self, instance: Any, name: str = "mine") -> None:
        self.instance, self.name = instance, name

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint(self.name, lambda: self.instance)


class OtherPlugin(Plugin):
    pass


class Several:
    """An endpoint of the routes that a test made."""

    def __init__(self, *routes: BaseRoute) -> None:
        self.given = routes

    def routes(self) -> list[BaseRoute]:
        return list(self.given)


def test_a_plugins_route_is_served_and_gets_the_engine(serve_script: Any) -> None:
    async def run() -> None:
        routes = Routes("/mine")
        async with serve_script(say("ab"), plugins=[Plugin(routes)]) as served:
            reply = await served.http.get("/mine")
            assert (reply.status_code, reply.text) == (200, "mine")
            assert "x-request-id" in reply.headers
            assert routes.client is served.runtime.app.state.engine_client
            assert served.runtime.app.state.mine == 8000
        assert routes.was_shut_down

    asyncio.run(run())


@pytest.mark.checklist(103, 107)
def test_a_plugin_replaces_one_method_of_a_core_route(serve_script: Any) -> None:
    async def run() -> None:
        plugin = Plugin(Routes("/v1/completions", "POST"))
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert reply.text == "mine"
            assert (await served.http.get("/v1/models")).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(("path", "method"), [("/v1/completions", "GET"), ("/{x:path}", "POST")])
def test_another_method_or_a_catch_all_hides_no_core_route(
    serve_script: Any, path: str, method: str
) -> None:
    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Plugin(Routes(path, method))]) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["choices"][0]["text"] == "ab"
            other = path.replace("{x:path}", "any/thing")
            assert (await served.http.request(method, other)).text == "mine"

    asyncio.run(run())


def test_a_route_that_a_built_in_one_hides_is_told(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        plugins = [Plugin(Routes("/v1/models/special")), OtherPlugin(Routes("/v2/models"), "two")]
        async with serve_script(say("ab"), plugins=plugins) as served:
            assert (await served.http.get("/v1/models/special")).status_code == 404

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if "never reached" in r.getMessage()]
    assert "GET /v1/models/special of object:Plugin" in line
    assert "/v1/models/{model:path}" in line


def test_a_websocket_that_nothing_installed_speaks_is_told(
    serve_script: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "websockets" else find(name)
    )

    async def run() -> None:
        plugin = Plugin(Several(WebSocketRoute("/ws", nothing), Route("/mine", nothing)))
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            assert "never reached" not in caplog.text, "another server may speak it"
            async with listening(served.runtime):
                pass

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if "never reached" in r.getMessage()]
    assert line.startswith("WebSocket /ws of object:Plugin is never reached: there is no ")
    assert line.endswith("pip install hookserve[websocket]")


async def nothing(*args: Any) -> None: ...


class Both(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return PlainTextResponse("got")

    post = get


SAME = [
    (Route("/v1/echo", nothing), Route("/v1/echo", nothing), "GET /v1/echo"),
    (Route("/v1/echo", nothing), Route("/v1//echo/", nothing), "GET /v1/echo"),
    (Route("/of/{user}", nothing), Route("/of/{name}/", nothing), "GET /of/{}"),
    (Route("/{p:path}", nothing), Route("/{x:path}", nothing), "GET /{:path}"),
    (Route("/x", nothing, methods=["POST"]), Route("/x", Both), "POST /x"),
    (WebSocketRoute("/ws", nothing), WebSocketRoute("/ws/", nothing), "WebSocket /ws"),
    (Mount("/ui", nothing), Mount("/ui/", nothing), "any method /ui"),
]


@pytest.mark.parametrize(("first", "second", "claimed"), SAME, ids=[each[2] for each in SAME])
def test_two_plugins_on_one_path_are_a_conflict_however_they_spell_it(
    first: BaseRoute, second: BaseRoute, claimed: str
) -> None:
    plugins = [Plugin(Several(first), "one"), OtherPlugin(Several(second), "two")]
    host = Host(["front"], PluginSettings(allow=()), plugins)
    with pytest.raises(PluginConflictError) as caught:
        EndpointSet.build(host)
    assert str(caught.value).startswith(f"{claimed}")
    assert "is claimed by object:OtherPlugin and by object:Plugin" in str(caught.value)


OTHERS = [
    (Route("/x", nothing), Route("/x", nothing, methods=["POST"])),
    (Route("/of/{user}", nothing), Route("/of/{user}/all", nothing)),
    (Route("/of/me", nothing), Route("/of/{user}", nothing)),
    (Route("/ws", nothing), WebSocketRoute("/ws", nothing)),
]


@pytest.mark.parametrize("routes", OTHERS)
def test_two_paths_of_two_plugins_are_none(
    routes: tuple[BaseRoute, BaseRoute], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = map(Several, routes)
    plugins = [OtherPlugin(one, "one"), Plugin(two, "two")]
    EndpointSet.build(Host(["front"], PluginSettings(allow=()), plugins))
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == []


HIDING = [
    (Route("/{p:path}", nothing), Route("/v1/echo", nothing), "/{p:path}"),
    (Route("/of/{user}", nothing), Route("/of/me", nothing), "/of/{user}"),
    (Mount("/", nothing), Route("/v1/echo", nothing), "/"),
    (Mount("/ui", nothing), Route("/ui/{page}", nothing), "/ui"),
    (Mount("/ui", nothing), WebSocketRoute("/ui/ws", nothing), "/ui"),
    (WebSocketRoute("/{p:path}", nothing), WebSocketRoute("/ws", nothing), "/{p:path}"),
]


@pytest.mark.parametrize(("first", "second", "path"), HIDING)
def test_a_route_that_another_plugins_swallows_is_told_with_both_owners(
    first: BaseRoute, second: BaseRoute, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = [OtherPlugin(Several(first), "one"), Plugin(Several(second), "two")]
    EndpointSet.build(Host(["front"], PluginSettings(allow=()), plugins))
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    how = f"object:Plugin is never reached: {path} of object:OtherPlugin comes first"
    assert [line.partition(" of ")[2] for line in said] == [how]


def test_a_built_in_route_spelled_with_other_slashes_stays_what_it_is(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        plugin = Plugin(Several(*(Route(path, Both) for path in ("/v1/completions/", "/livez/"))))
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["choices"][0]["text"] == "ab"
            assert (await served.http.post("/v1/completions/")).text == "got"
            assert (await served.http.get("/livez")).text != "got"

    asyncio.run(run())
    told = [r.getMessage() for r in caplog.records if "differ in slashes" in r.getMessage()]
    for line, mine in zip(told, ("POST /v1/completions", "GET /livez"), strict=True):
        assert f"{mine}/ of object:Plugin does not replace {mine} of hookserve:builtin:" in line


def test_what_a_plugins_route_raises_names_the_plugin_and_harms_nobody(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Plugin(Routes("/x", text="raise"))]) as served:
            reply = await served.http.get("/x")
            assert reply.status_code == 500
            error = reply.json()["error"]
            assert "object:Plugin" in error["message"]
            assert "secret detail" not in reply.text
            assert (await served.http.get("/readyz")).status_code == 200

    asyncio.run(run())
    assert any("object:Plugin" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("path", ["/mine", "/app/x"])
@pytest.mark.parametrize(
    ("refusal", "status", "param", "code"),
    [
        (QueueFullError("too many"), 503, None, "queue_full"),
        (InvalidRequestError("no prompt", param="prompt"), 400, "prompt", "invalid_value"),
        (EngineDeadError("it ended"), 503, None, "engine_dead"),
    ],
)
def test_what_the_engine_refuses_a_plugins_route_is_not_the_plugins_fault(
    serve_script: Any,
    refusal: Exception,
    status: int,
    param: str | None,
    code: str | None,
    path: str,
) -> None:
    """From a function of a route, and from an application of the plugin's own."""

    class Asking(Routes):
        def routes(self) -> list[Any]:
            return [*super().routes(), Mount("/app", self.app)]

        async def answer(self, request: Request) -> Response:
            raise refusal

        async def app(self, scope: Any, receive: Any, send: Any) -> None:
            raise refusal

    async def run() -> None:
        async with serve_script(say("a"), plugins=[Plugin(Asking("/mine"))]) as served:
            reply = await served.http.get(path)
        assert reply.status_code == status
        error = reply.json()["error"]
        assert (error["message"], error["param"], error["code"]) == (str(refusal), param, code)

    asyncio.run(run())


def test_a_route_that_ends_as_a_websocket_does_is_answered(serve_script: Any) -> None:
    async def ends(request: Request) -> Response:
        raise WebSocketDisconnect(1000)

    async def run() -> None:
        plugin = Plugin(Several(Route("/mine", ends)))
        async with serve_script(say("a"), plugins=[plugin]) as served:
            reply = await served.http.get("/mine")
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "plugin_error")

    asyncio.run(run())


def test_a_plugins_reply_that_breaks_off_names_the_plugin(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaking(Routes):
        async def answer(self, request: Request) -> Response:
            async def pieces() -> AsyncIterator[bytes]:
                yield b"a"
                raise ZeroDivisionError

            return StreamingResponse(pieces())

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Plugin(Breaking("/x"))]) as served:
            with pytest.raises(ReplyCutShort):
                await served.http.get("/x")

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "object:Plugin" in line


def test_a_route_that_cannot_compare_paths_harms_no_other(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Unmatchable(BaseRoute):
        def matches(self, scope: Any) -> Any:
            raise RuntimeError("no match")

    class Both(Routes):
        def routes(self) -> list[Any]:
            return [Unmatchable(), *super().routes()]

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Plugin(Both("/mine"))]) as served:
            assert (await served.http.get("/mine")).text == "mine"
            assert (await served.http.get("/nowhere")).status_code == 404

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if "compare paths" in r.getMessage()]
    assert "object:Plugin" in line


def test_an_endpoint_that_hangs_in_init_state_is_put_out(serve_script: Any) -> None:
    class Hanging(Routes):
        async def init_state(self, engine_client: Any, state: Any, settings: Any) -> None:
            await asyncio.Event().wait()

    hooks = {"startup_hook_timeout_s": 0.2}

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Plugin(Hanging("/x"))], hooks=hooks) as served:
            assert (await served.http.get("/x")).status_code == 404
            (line,) = served.runtime.host.problems()
            assert "object:Plugin" in line and "0.2 s" in line

    asyncio.run(asyncio.wait_for(run(), 10))


def test_an_init_state_that_is_no_coroutine_function_is_said_to_be_none(serve_script: Any) -> None:
    class Plain(Routes):
        def init_state(self, engine_client: Any, state: Any, settings: Any) -> None:  # type: ignore[override]
            pass

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Plugin(Plain("/x"))]) as served:
            assert (await served.http.get("/x")).status_code == 404
            (line,) = served.runtime.host.problems()
            assert "init_state: TypeError: it returned NoneType, expected an `async def`" in line

    asyncio.run(run())


def test_a_factory_that_does_not_end_puts_its_plugin_out(serve_script: Any) -> None:
    release = threading.Event()

    class Waiting(Plugin):
        @hookimpl
        def endpoint(self) -> Endpoint:
            return Endpoint("waiting", release.wait)

    async def run() -> None:
        hooks = {"startup_hook_timeout_s": 0.2}
        async with serve_script(say("ab"), plugins=[Waiting(None)], hooks=hooks) as served:
            (line,) = served.runtime.host.problems()
            assert "endpoint waiting was not built within 0.2 s" in line

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_an_exception_that_cannot_be_told_keeps_no_server_from_stopping(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    class Silent(Routes):
        async def shutdown(self) -> None:
            raise Mute

    other = Routes("/y")

    async def run() -> None:
        plugins = [Plugin(Silent("/x")), OtherPlugin(other, "other")]
        async with serve_script(say("ab"), plugins=plugins) as served:
            await served.runtime.endpoints.shutdown()

    asyncio.run(run())
    assert other.was_shut_down
    assert "shutdown of endpoint mine: Mute" in caplog.text


@pytest.mark.parametrize("fault", ["factory", "routes", "init"])
def test_an_endpoint_that_cannot_be_built_puts_its_plugin_out(
    serve_script: Any, fault: str
) -> None:
    class NoRoutes:
        def routes(self) -> list[Any]:
            return ["/x"]

    class Broken(Plugin):
        @hookimpl
        def endpoint(self) -> Endpoint:
            if fault == "factory":
                return Endpoint("broken", "no.such.module:Thing")
            if fault == "routes":
                return Endpoint("broken", NoRoutes)
            return Endpoint("broken", lambda: Routes("/x", text="bad init"))

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[Broken(None)]) as served:
            assert (await served.http.get("/x")).status_code == 404
            assert (await served.http.get("/v1/models")).status_code == 200
            reports = served.runtime.host.describe()
        (report,) = [report for report in reports if report.identity == "object:Broken"]
        assert report.state == "out"
        assert report.error

    asyncio.run(run())
