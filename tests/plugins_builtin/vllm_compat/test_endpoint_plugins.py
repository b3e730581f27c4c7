"""Endpoint plugins as they are written for vLLM: routes on a FastAPI application of the server, and
what comes with them. What they do later is tested beside, and so are WebSockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from argparse import Namespace
from importlib.metadata import EntryPoint
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from endpoint_plugins import Attach, One, Routes, Two
from hookserve.engine.errors import InvalidRequestError
from hookserve.hookspecs import Endpoint, Host, PluginConflictError, PluginSettings
from hookserve.plugins_builtin.vllm_compat.endpoints import AttachedEndpoint, load
from hookserve.server.endpoint_set import EndpointSet
from hookserve.server.secret import Secret
from scripted_engine import say


class Body(BaseModel):
    count: int


def test_what_fastapi_offers_works_on_its_application(serve_script: Any) -> None:
    """Functions with parameters, bodies that are checked, dependencies, included routers, mounts,
    ``HTTPException``, and the state that ``init_state`` was given."""

    def word(request: Request) -> str:
        return str(request.app.state.word)

    class Plugin(Routes):
        def attach_router(self, app: FastAPI) -> None:
            router = APIRouter(prefix="/v1/mine", tags=["mine"])

            @app.get("/v1/hello")
            async def hello(raw_request: Request, times: int = 1) -> dict[str, Any]:
                return {"word": raw_request.app.state.word * times}

            @router.post("/sum")
            def add(body: Body, word: str = Depends(word)) -> dict[str, Any]:
                return {"sum": body.count + 1, "word": word}

            @router.get("/closed/{name}")
            async def closed(name: str) -> None:
                raise HTTPException(503, f"no {name} here", headers={"retry-after": "3"})

            app.include_router(router)
            app.routes.append(Route("/listed", lambda request: PlainTextResponse("l")))
            app.mount("/sub", Starlette(routes=[Route("/page", lambda r: PlainTextResponse("p"))]))

        async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
            state.word = "ab"

    async def run() -> None:
        plugin = One(Plugin(print))
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            http = served.http
            reply = await http.get("/v1/hello?times=2")
            assert (reply.status_code, reply.json()) == (200, {"word": "abab"})
            assert reply.headers["x-request-id"]
            reply = await http.post("/v1/mine/sum", json={"count": 3})
            assert reply.json() == {"sum": 4, "word": "ab"}
            reply = await http.get("/v1/mine/closed/door")
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "3")
            assert reply.json()["error"]["message"] == "no door here"
            assert (await http.get("/sub/page")).text == "p"
            assert (await http.get("/listed")).text == "l"
            # And the server's own routes and answers are what they are without it.
            reply = await http.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["choices"][0]["text"] == "ab"
            assert (await http.get("/nowhere")).json()["error"]["code"] == "unknown_route"
            assert (await http.delete("/v1/models")).json()["error"]["code"] == "method_not_allowed"

    asyncio.run(run())


@pytest.mark.checklist(97, 98)
def test_a_body_that_does_not_fit_is_a_422_in_the_servers_envelope(serve_script: Any) -> None:
    def attach(app: FastAPI) -> None:
        @app.post("/v1/mine")
        async def mine(body: Body) -> None: ...

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[One(attach)]) as served:
            reply = await served.http.post("/v1/mine", json={"count": "many secrets"})
        assert reply.status_code == 422
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == ("body.count", "invalid_value")
        assert error["type"] == "invalid_request_error"
        assert "valid integer" in error["message"] and "secrets" not in reply.text

    asyncio.run(run())


def test_what_a_handler_raises_names_the_plugin_and_shows_nothing(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What the engine refuses is no failure; what it cannot do is a 501."""

    class Plugin(Routes):
        def attach_router(self, app: FastAPI) -> None:
            @app.get("/v1/raise/{what}")
            async def raising(request: Request, what: str) -> None:
                if what == "sleep":
                    await request.app.state.engine.sleep()
                if what == "empty":
                    raise InvalidRequestError("no prompt", param="prompt")
                raise ZeroDivisionError("secret detail")

        async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
            state.engine = engine_client

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[One(Plugin(print))]) as served:
            reply = await served.http.get("/v1/raise/any")
            assert (reply.status_code, reply.json()["error"]["code"]) == (500, "plugin_error")
            assert "object:One" in reply.text and "secret" not in reply.text
            reply = await served.http.get("/v1/raise/sleep")
            assert (reply.status_code, reply.json()["error"]["code"]) == (501, "not_served")
            assert "sleep: " in reply.json()["error"]["message"]
            assert (await served.http.get("/v1/raise/empty")).status_code == 400

    asyncio.run(run())
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert lines == ["plugin object:One: endpoint vllm:mine failed at '/v1/raise/any'"]


@pytest.mark.checklist(102, 103)
def test_the_same_path_and_method_replaces_and_leaves_the_other_method(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def attach(app: FastAPI) -> None:
        assert any(getattr(route, "path", "") == "/v1/models" for route in app.routes)
        router = APIRouter()

        @router.get("/v1/completions")
        async def completions() -> str:
            return "mine"

        @router.get("/v1/models")
        async def models() -> str:
            return "mine"

        app.include_router(router)

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[One(attach)]) as served:
            http = served.http
            assert (await http.get("/v1/completions")).json() == "mine"
            assert (await http.get("/v1/models")).json() == "mine"
            reply = await http.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["choices"][0]["text"] == "ab"
            assert (await http.get("/v1/models/m")).json()["id"] == "m"

    asyncio.run(run())
    said = [r.getMessage() for r in caplog.records if "overrides" in r.getMessage()]
    assert said == [
        "GET /v1/models: object:One overrides the built-in route of hookserve:builtin:endpoints"
    ]


CATCH_ALLS: list[tuple[str, Attach, str]] = [
    ("a path", lambda app: app.add_api_route("/{p:path}", print), "GET /livez"),
    ("another name", lambda app: app.add_api_route("/v1/models/{name}", print), "GET /v1/models/"),
    ("a mount", lambda app: app.mount("/v1", print), "GET /v1/plugins"),
    ("a host", lambda app: app.host("{any:path}", print), "GET /livez"),
]


@pytest.mark.parametrize(
    ("attach", "swallowed"), [each[1:] for each in CATCH_ALLS], ids=[each[0] for each in CATCH_ALLS]
)
@pytest.mark.parametrize("is_included", [False, True])
def test_a_catch_all_that_would_answer_a_built_in_route_is_refused(
    serve_script: Any, attach: Attach, swallowed: str, is_included: bool
) -> None:
    def included(app: FastAPI) -> None:
        router = APIRouter()
        attach(router)  # type: ignore[arg-type]
        app.include_router(router)

    async def run() -> None:
        other = Two(lambda app: app.add_api_route("/v1/other", lambda: "other"))
        plugin = One(included if is_included else attach)
        async with serve_script(say("ab"), plugins=[plugin, other]) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["choices"][0]["text"] == "ab"
            assert (await served.http.get("/v1/other")).json() == "other"
            assert (await served.http.get("/any/thing")).status_code == 404
            (line,) = served.runtime.host.problems()
        assert "object:One is out" in line and "would answer " + swallowed in line

    asyncio.run(run())


def test_a_route_that_fails_to_compare_paths_is_out_with_its_plugin(serve_script: Any) -> None:
    class Odd(Route):
        def matches(self, scope: Any) -> Any:
            return super().matches({**scope, "client": scope["client"]})

    async def run() -> None:
        plugins = [
            One(lambda app: app.router.routes.append(Odd("/odd", print))),
            Two(lambda app: app.add_api_route("/v1/other", lambda: "other")),
        ]
        async with serve_script(say("ab"), plugins=plugins) as served:
            assert (await served.http.get("/v1/other")).json() == "other"
            assert (await served.http.get("/odd")).status_code == 404
            (line,) = served.runtime.host.problems()
        assert line.endswith("endpoint vllm:mine: KeyError: 'client'")

    asyncio.run(run())


def test_two_plugins_on_one_new_path_are_a_conflict_however_they_add_it() -> None:
    def attach(app: FastAPI) -> None:
        app.add_api_route("/v1/mine/{name}", print)

    def included(app: FastAPI) -> None:
        router = APIRouter()
        router.add_api_route("/mine/{id}", print)
        app.include_router(router, prefix="/v1")

    host = Host(["front"], PluginSettings(allow=()), [One(attach), Two(included)])
    with pytest.raises(PluginConflictError) as caught:
        EndpointSet.build(host)
    said = "GET /v1/mine/{} is claimed by object:One and by object:Two"
    other = "GET /v1/mine/{} is claimed by object:Two and by object:One"
    assert str(caught.value).startswith((said, other))


def test_keys_and_limits_hold_for_plugins_routes_whatever_their_path(serve_script: Any) -> None:
    def attach(app: FastAPI) -> None:
        router = APIRouter()

        @router.get("/health")
        @router.get("/v1/plugins")
        @router.get("/outside")
        async def answer() -> str:
            return "mine"

        @router.post("/outside")
        async def take(request: Request) -> int:
            return len(await request.body())

        app.include_router(router)

    async def run() -> None:
        keys = {"api_key": (Secret("k"),), "admin_key": (Secret("a"),)}
        async with serve_script(say("ab"), plugins=[One(attach)], settings=keys) as served:
            user, admin = ({"authorization": f"Bearer {key}"} for key in "ka")

            async def status(path: str, **headers: Any) -> int:
                reply: httpx.Response = await served.http.get(path, **headers)
                return reply.status_code

            for path in ("/health", "/v1/plugins", "/outside"):
                assert await status(path) in (401, 403)
                assert await status(path, headers=admin) == 200
            assert await status("/outside", headers=user) == 200
            assert await status("/v1/plugins", headers=user) == 403, "the built-in one was admin's"
            assert await status("/livez") == 200
            big = {**user, "content-length": str(2**40)}
            reply = await served.http.post("/outside", content=b"a", headers=big)
            assert reply.json()["error"]["code"] == "body_too_large"

    asyncio.run(run())


# -- what comes with the routes --------------------------------------------------------------------


def test_middleware_stands_behind_keys_and_limits_and_is_its_plugins(serve_script: Any) -> None:
    seen: list[str] = []

    class Counting:
        def __init__(self, app: Any, word: str) -> None:
            self.app, self.word = app, word

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            seen.append(f"{self.word} {scope['path']}")
            await self.app(scope, receive, send)

    def attach(app: FastAPI) -> None:
        @app.middleware("http")
        async def inner(request: Request, call_next: Any) -> Any:
            seen.append(f"inner {request.url.path}")
            if request.url.path == "/v1/boom":
                raise ZeroDivisionError
            return await call_next(request)

        app.add_middleware(Counting, word="outer")  # type: ignore[arg-type]

    async def run() -> None:
        settings = {"api_key": (Secret("k"),)}
        key = {"authorization": "Bearer k"}
        async with serve_script(say("ab"), plugins=[One(attach)], settings=settings) as served:
            assert (await served.http.get("/v1/models")).status_code == 401
            assert (await served.http.get("/livez")).status_code == 200
            assert seen == []
            assert (await served.http.get("/v1/models", headers=key)).status_code == 200
            assert seen == ["outer /v1/models", "inner /v1/models"]
            reply = await served.http.get("/v1/boom", headers=key)
            assert reply.status_code == 500
            assert "object:One failed with ZeroDivisionError" in reply.text

    asyncio.run(run())


def test_exception_handlers_hold_for_the_plugins_own_routes(serve_script: Any) -> None:
    class OutOfTea(Exception):
        pass

    async def handle(request: Request, error: Exception) -> PlainTextResponse:
        return PlainTextResponse(f"mine: {error}", 418)

    def attach(app: FastAPI) -> None:
        app.add_exception_handler(OutOfTea, handle)
        app.add_exception_handler(404, handle)
        app.add_exception_handler(Exception, handle)

        @app.get("/v1/tea/{what}")
        async def tea(what: str) -> None:
            if what == "404":
                raise HTTPException(404, "gone")
            raise OutOfTea if what == "out" else ValueError(what)

    def other(app: FastAPI) -> None:
        @app.get("/v1/other")
        async def fail() -> None:
            raise OutOfTea

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[One(attach), Two(other)]) as served:
            for what, said in (("out", "mine: "), ("404", "mine: 404: gone"), ("x", "mine: x")):
                reply = await served.http.get(f"/v1/tea/{what}")
                assert (reply.status_code, reply.text) == (418, said)
            assert '"unknown_route"' in (await served.http.get("/v1/nothing")).text
            assert '"plugin_error"' in (await served.http.get("/v1/other")).text

    asyncio.run(run())


def test_both_documents_show_the_routes(serve_script: Any) -> None:
    def attach(app: FastAPI) -> None:
        router = APIRouter(prefix="/v1/mine")

        @router.post("/sum/{name}", summary="Adds up")
        def add(body: Body, name: str) -> int:
            return body.count

        @app.get("/v1/hello")
        async def hello() -> str:
            """Greets."""
            return "hello"

        app.include_router(router)

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[One(attach)]) as served:
            own = served.runtime.app.openapi()["paths"]
            assert sorted(own) == ["/v1/hello", "/v1/mine/sum/{name}"]
            assert "requestBody" in own["/v1/mine/sum/{name}"]["post"]
            paths = (await served.http.get("/openapi.json")).json()["paths"]
            for path, method, said in (
                ("/v1/hello", "get", "Greets."),
                ("/v1/mine/sum/{name}", "post", "Adds up"),
            ):
                assert paths[path][method]["summary"] == said
                assert paths[path][method]["x-hookserve-plugin"] == "object:One"
            assert "/v1/chat/completions" in paths

    asyncio.run(run())


# -- what goes wrong -------------------------------------------------------------------------------


def test_what_attach_router_leaves_behind_when_it_raises_is_nothing(serve_script: Any) -> None:
    def failing(app: FastAPI) -> None:
        app.add_api_route("/v1/half", lambda: "half")
        app.add_exception_handler(404, print)  # type: ignore[arg-type]
        app.router.add_event_handler("startup", lambda: 1 / 0)
        app.add_middleware(Body)  # type: ignore[arg-type]
        app.router.routes.clear()
        raise RuntimeError("no licence")

    async def run() -> None:
        other = Two(lambda app: app.add_api_route("/v1/other", lambda: "here"))
        async with serve_script(say("ab"), plugins=[One(failing), other]) as served:
            assert (await served.http.get("/v1/half")).json()["error"]["code"] == "unknown_route"
            assert (await served.http.get("/v1/other")).json() == "here"
            assert (await served.http.get("/v1/models")).status_code == 200
            (line,) = served.runtime.host.problems()
        assert line.endswith("endpoint vllm:mine: RuntimeError: no licence")

    asyncio.run(run())


def test_an_attach_router_that_hangs_is_left_alone_with_its_application(serve_script: Any) -> None:
    release, ended = threading.Event(), threading.Event()

    def hanging(app: FastAPI) -> None:
        app.add_api_route("/v1/half", lambda: "half")
        release.wait()
        app.add_api_route("/v1/late", lambda: "late")
        app.router.routes.clear()
        ended.set()

    def attach(app: FastAPI) -> None:
        app.state.attached = app.state.attached + 1 if hasattr(app.state, "attached") else 1
        app.add_api_route(f"/v1/{app.state.attached}", lambda: "here")

    class Three(One):
        pass

    async def run() -> None:
        plugins = [One(attach, "a"), Two(hanging), Three(attach, "c")]
        hooks = {"startup_hook_timeout_s": 0.3}
        async with serve_script(say("ab"), plugins=plugins, hooks=hooks) as served:
            release.set()
            assert await asyncio.to_thread(ended.wait, 10)
            for path in ("/v1/1", "/v1/2"):
                assert (await served.http.get(path)).json() == "here"
            for path in ("/v1/half", "/v1/late"):
                assert (await served.http.get(path)).status_code == 404
            assert (await served.http.get("/v1/models")).status_code == 200
            (line,) = served.runtime.host.problems()
        assert line.endswith("endpoint vllm:other was not built within 0.3 s")

    try:
        asyncio.run(run())
    finally:
        release.set()


@pytest.mark.checklist(94)
def test_an_object_without_a_member_is_refused_and_the_member_named() -> None:
    class Half:
        name, required_tasks = "half", None

        def attach_router(self, app: Any) -> None: ...

    host = Host(["front"], PluginSettings(allow=()), [One(Half(), "half")])
    EndpointSet.build(host)
    (line,) = host.problems()
    assert "its Half has no init_state; an endpoint plugin has name, required_tasks, " in line


@pytest.mark.checklist(95)
def test_a_name_other_than_the_entry_points_is_told(caplog: pytest.LogCaptureFixture) -> None:
    AttachedEndpoint("entry", Routes(print))
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == (
        "the endpoint plugin of entry point entry calls itself 'mine'; it goes by the entry "
        "point's name"
    )


@pytest.mark.checklist(96)
@pytest.mark.parametrize(
    ("tasks", "is_served"),
    [(None, True), (("embed", "generate"), True), (("embed", "classify"), False), ((), False)],
)
def test_required_tasks_decide_whether_it_is_served(
    tasks: tuple[str, ...] | None, is_served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Routes(lambda app: app.add_api_route("/v1/mine", lambda: "here"))
    plugin.required_tasks = tasks
    caplog.set_level("INFO")
    host = Host(["front"], PluginSettings(allow=()), [One(plugin)])
    endpoints = EndpointSet.build(host)
    assert isinstance(endpoints.app, FastAPI) == is_served
    assert host.problems() == []
    told = (
        "the model does none of embed, classify" if tasks else "required_tasks names none; None is"
    )
    assert (f"is not served: {told}" in caplog.text) != is_served


def entry(value: str) -> EntryPoint:
    return EntryPoint("mine", value, "vllm.endpoint_plugins")


@pytest.mark.checklist(93)
def test_a_factory_is_a_class_or_a_function_and_nothing_else() -> None:
    loaded = load(entry("types:SimpleNamespace")).endpoint()
    assert isinstance(loaded, Endpoint) and loaded.name == "vllm:mine"
    with pytest.raises(TypeError, match="sys:path is a list; expected a class or a function"):
        load(entry("sys:path"))


def test_without_fastapi_nothing_is_imported_and_what_to_install_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install hookserve\[vllm-compat\]$"):
        load(entry("no_such_module:Nothing"))


def test_a_server_without_such_a_plugin_imports_no_fastapi() -> None:
    code = (
        "import sys, hookserve.server.runtime, hookserve.server.serve\n"
        "import hookserve.plugins_builtin.vllm_compat.adapter\n"
        "from hookserve.hookspecs import Host, PluginSettings\n"
        "from hookserve.server.endpoint_set import EndpointSet\n"
        "EndpointSet.build(Host(['front'], PluginSettings(no_plugins=True)))\n"
        "print({'fastapi', 'pydantic', 'websockets'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("set()\n", "")


@pytest.mark.checklist(107)
def test_without_such_a_plugin_the_application_is_starlettes_own() -> None:
    host = Host(["front"], PluginSettings(allow=()), [])
    assert type(EndpointSet.build(host).app) is Starlette
    built_in = {claim.name: claim.owner for claim in host.registry("endpoint").claims()}
    assert built_in["chat_completions"] == "hookserve:builtin:endpoints"
