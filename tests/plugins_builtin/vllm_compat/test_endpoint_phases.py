"""Endpoint plugins that were written for vLLM when the engine is there: what they start and stop,
and what they add then."""

from __future__ import annotations

import asyncio
import contextlib
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException, Request
from starlette.responses import PlainTextResponse

from endpoint_plugins import Attach, One, Routes, Two
from hookserve.engine.errors import EngineDeadError
from hookserve.server.secret import Secret
from scripted_engine import say


class Later(Routes):
    """Adds something in ``init_state`` too."""

    def __init__(self, add: Callable[[FastAPI], Any], attach: Attach = lambda app: None) -> None:
        super().__init__(attach)
        self._add = add

    def attach_router(self, app: FastAPI) -> None:
        self.app = app
        super().attach_router(app)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        self._add(self.app)


def test_startup_and_shutdown_handlers_run_once_around_the_service(serve_script: Any) -> None:
    """Of the application, of an included router, and a lifespan, whose state requests see; in the
    task in which they were entered, and after ``init_state``."""
    told: list[str] = []
    tasks: list[Any] = []

    class Plugin(Routes):
        def attach_router(self, app: FastAPI) -> None:
            @contextlib.asynccontextmanager
            async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
                tasks.append(asyncio.current_task())
                told.append("lifespan")
                yield {"pool": "open"}
                told.append("lifespan ends")
                tasks.append(asyncio.current_task())

            router = APIRouter(lifespan=lifespan)

            @router.get("/v1/pool")
            async def pool(request: Request) -> str:
                return str(request.state.pool + request.state.request_id)

            app.include_router(router)
            app.router.add_event_handler("startup", lambda: told.append("up"))
            with pytest.warns(DeprecationWarning):

                @app.on_event("shutdown")
                async def down() -> None:
                    told.append("down")

        async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
            told.append("state")

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[One(Plugin(print))]) as served:
            assert told == ["state", "up", "lifespan"]
            reply = await served.http.get("/v1/pool", headers={"x-request-id": "7"})
            assert reply.json() == "open7"

    asyncio.run(run())
    assert told == ["state", "up", "lifespan", "lifespan ends", "down"]
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("fault", ["raises", "hangs", "yields"])
def test_a_startup_handler_that_fails_puts_its_plugin_out_alone(
    serve_script: Any, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    async def start() -> None:
        if fault == "raises":
            raise RuntimeError("no licence")
        await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[str]:
        yield "a word"

    def failing(app: FastAPI) -> None:
        app.add_api_route("/v1/failing", lambda: "here")
        if fault == "yields":
            app.router.lifespan_context = lifespan
        else:
            app.router.add_event_handler("startup", start)

    def other(app: FastAPI) -> None:
        app.add_api_route("/v1/other", lambda: "here")
        app.router.add_event_handler("startup", lambda: told.append("up"))

    async def run() -> None:
        plugins = [One(failing), Two(other)]
        hooks = {"startup_hook_timeout_s": 0.3}
        async with serve_script(say("ab"), plugins=plugins, hooks=hooks) as served:
            assert (await served.http.get("/v1/failing")).status_code == 404
            assert (await served.http.get("/v1/other")).json() == "here"
            (line,) = served.runtime.host.problems()
        said = {
            "raises": "RuntimeError: no licence",
            "hangs": "they took more than 0.3 s",
            "yields": "TypeError: a lifespan yields a str; expected a mapping",
        }
        assert line.endswith(f"startup handlers: {said[fault]}") and "object:One" in line

    asyncio.run(run())
    assert told == ["up"]


def test_an_engine_that_dies_meanwhile_is_not_the_plugins_fault(serve_script: Any) -> None:
    class Plugin(Routes):
        is_deadly = False

        def attach_router(self, app: FastAPI) -> None:
            app.router.add_event_handler("startup", self.start)

        async def start(self) -> None:
            if self.is_deadly:
                self.given[0]._client.mark_dead(EngineDeadError("it fell over"))
                await self.given[0].check_health()

    async def run() -> None:
        plugin = Plugin(print)
        async with serve_script(say("ab"), plugins=[One(plugin)]) as served:
            runtime, plugin.is_deadly = served.runtime, True
            client = runtime.serving.prompt_client
            with pytest.raises(EngineDeadError, match="it fell over"):
                await runtime.endpoints.init_state(client, runtime.app.state, runtime.settings)
            assert runtime.host.problems() == []

    asyncio.run(run())


def test_a_shutdown_handler_that_fails_keeps_nobody_from_stopping(
    serve_script: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookserve.server.endpoint_set.SHUTDOWN_BUDGET_S", 0.05)
    told: list[str] = []

    def raising(app: FastAPI) -> None:
        app.router.add_event_handler("shutdown", lambda: 1 / 0)

    def hanging(app: FastAPI) -> None:
        app.router.add_event_handler("shutdown", asyncio.Event().wait)

    def other(app: FastAPI) -> None:
        app.router.add_event_handler("shutdown", lambda: told.append("down"))

    class Three(One):
        pass

    async def run() -> None:
        plugins = [One(other, "a"), Two(raising), Three(hanging, "c")]
        async with serve_script(say("ab"), plugins=plugins):
            pass

    asyncio.run(asyncio.wait_for(run(), 10))
    assert told == ["down"]
    for said in (
        "plugin object:Two: shutdown handlers of endpoint vllm:other: ZeroDivisionError",
        "plugin object:Three: shutdown handlers of endpoint vllm:c: ",
    ):
        assert said in caplog.text


# -- what is added in init_state -------------------------------------------------------------------


def test_routes_that_are_taken_away_stay_and_late_ones_are_guarded(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Plugin(Routes):
        def attach_router(self, app: FastAPI) -> None:
            self.app = app
            app.router.routes = [r for r in app.routes if getattr(r, "path", "") != "/v1/models"]

        async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
            @self.app.get("/v1/late")
            async def late() -> None:
                raise ZeroDivisionError

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[One(Plugin(print))]) as served:
            assert (await served.http.get("/v1/models")).status_code == 200
            assert (await served.http.get("/v1/late")).json()["error"]["code"] == "plugin_error"

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if "took the routes" in r.getMessage()]
    assert line.startswith("plugin object:One: it took the routes /v1/models away")


def test_what_init_state_adds_is_behind_the_same_keys_and_its_plugins_alone(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it puts another list in the place of the application's routes."""
    told: list[str] = []

    async def gone(request: Request, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("mine", 404)

    async def missing() -> None:
        raise HTTPException(404)

    def add(app: FastAPI) -> None:
        app.router.routes = [each for each in app.routes if getattr(each, "path", "") != "/none"]
        app.add_api_route("/v1/late", missing)
        app.add_exception_handler(404, gone)
        app.router.add_event_handler("startup", lambda: told.append("up"))
        app.router.add_event_handler("shutdown", lambda: told.append("down"))

    def replacing(app: FastAPI) -> None:
        app.add_api_route("/v1/models", lambda: "mine")

    async def run() -> None:
        keys = {"api_key": (Secret("k"),), "admin_key": (Secret("a"),)}
        plugin = One(Later(add, replacing))
        async with serve_script(say("ab"), plugins=[plugin], settings=keys) as served:
            http, user = served.http, {"authorization": "Bearer k"}
            assert (await http.get("/v1/plugins", headers=user)).status_code == 403
            assert (await http.get("/v1/late")).status_code == 401
            assert (await http.get("/v1/late", headers=user)).text == "mine"
            assert '"unknown_route"' in (await http.get("/v1/nothing", headers=user)).text
            assert (await http.get("/v1/models", headers=user)).json() == "mine"
            assert told == ["up"] and served.runtime.host.problems() == []

    asyncio.run(run())
    assert told == ["up", "down"]
    assert sum("overrides the built-in" in line for line in caplog.messages) == 1


def test_middleware_that_comes_too_late_stands_nowhere(serve_script: Any) -> None:
    """It would stand before the server's keys and limits."""

    async def run() -> None:
        plugin = One(Later(lambda app: app.add_middleware(print)))
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            assert (await served.http.get("/v1/models")).status_code == 200
            said = "init_state: RuntimeError: Cannot add middleware after"
            assert [said in line for line in served.runtime.host.problems()] == [True]

    asyncio.run(run())


def test_a_late_catch_all_is_refused(serve_script: Any) -> None:
    async def run() -> None:
        plugin = One(Later(lambda app: app.add_api_route("/{path:path}", lambda: "all")))
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            assert (await served.http.get("/livez")).status_code == 200
            assert (await served.http.get("/any")).status_code == 404
            (line,) = served.runtime.host.problems()
        assert "its route /{path:path} would answer GET /livez of hookserve:builtin" in line

    asyncio.run(run())


INIT = [
    ("raises", "init_state: RuntimeError: no licence"),
    ("hangs", "init_state: it took more than 0.3 s"),
    ("is no coroutine", "init_state: TypeError: it returned NoneType, expected an `async def`"),
]


@pytest.mark.parametrize(("how", "said"), INIT, ids=[each[0] for each in INIT])
@pytest.mark.checklist(104)
def test_an_init_state_that_fails_puts_its_plugin_out(
    serve_script: Any, how: str, said: str
) -> None:
    class Plugin(Routes):
        def init_state(self, *given: Any) -> Any:  # type: ignore[override]
            return None if how == "is no coroutine" else self.work()

        async def work(self) -> None:
            if how == "raises":
                raise RuntimeError("no licence")
            await asyncio.Event().wait()

    async def run() -> None:
        plugin = Plugin(lambda app: app.add_api_route("/v1/mine", lambda: "here"))
        other = Two(lambda app: None)
        hooks = {"startup_hook_timeout_s": 0.3}
        async with serve_script(say("ab"), plugins=[One(plugin), other], hooks=hooks) as served:
            assert (await served.http.get("/v1/mine")).status_code == 404
            assert (await served.http.get("/readyz")).status_code == 200
            (line,) = served.runtime.host.problems()
        assert "object:One" in line and line.endswith(said)
        assert other.made.given, "it is awaited for each plugin that was attached"

    asyncio.run(run())


REPLACES: dict[str, Callable[[Any], Any]] = {
    "app.router": lambda app: setattr(app, "router", APIRouter()),
    "app.state": lambda app: setattr(app, "state", None),
    "app.state.serving": lambda app: setattr(app.state, "serving", "mine"),
    "app.state.health": lambda app: delattr(app.state, "health"),
}


# Nothing of the server's is in the state before the engine is there.
EARLY_OR_LATE = [(what, late) for what in REPLACES for late in (False, True)]


@pytest.mark.parametrize(
    ("what", "late"), [each for each in EARLY_OR_LATE if each[1] or "state." not in each[0]]
)
def test_what_the_server_needs_of_the_application_stays_and_who_replaced_it_is_out(
    serve_script: Any, what: str, late: bool
) -> None:
    def add(app: FastAPI) -> None:
        app.add_api_route("/v1/failing", lambda: "here")
        REPLACES[what](app)

    plugin = Later(add) if late else Routes(add)
    plugins = [One(plugin), Two(lambda app: app.add_api_route("/v1/other", lambda: "here"))]

    async def run() -> None:
        async with serve_script(say("ab"), plugins=plugins) as served:
            assert (await served.http.get("/v1/failing")).status_code == 404
            assert (await served.http.get("/v1/other")).json() == "here"
            assert (await served.http.get("/v1/models")).status_code == 200
            assert (await served.http.get("/health")).status_code == 200
            (line,) = served.runtime.host.problems()
            assert f"in the place of {what}, which the server needs" in line

    asyncio.run(run())
