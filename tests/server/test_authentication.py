"""Keys, authenticators and the hook ``authenticate``: which request reaches which route as whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from hookserve.hookspecs import (
    Denied,
    Endpoint,
    Named,
    PluginError,
    Principal,
    RequestHead,
    RequiredPluginError,
    UnknownNameError,
    hookimpl,
)
from hookserve.server import ScopedRoute
from hookserve.server.request_context import head_of
from hookserve.server.secret import Secret
from http_front import exchange, listening
from scripted_engine import say

KEYS = {"api_key": (Secret("spare"), Secret("sesame")), "admin_key": (Secret("root"),)}
BEARER = {
    "none": [],
    "wrong": ["Authorization: Bearer sesam"],
    "longer": ["Authorization: Bearer sesamee"],
    "10 KB": ["Authorization: Bearer " + "k" * 10_240],
    "other scheme": ["Authorization: Basic sesame"],
    "no scheme": ["Authorization: sesame"],
    "twice": ["Authorization: Bearer sesame", "Authorization: Bearer root"],
    "inference": ["Authorization: Bearer sesame"],
    "small letters": ["authorization: bearer   sesame"],
    "admin": ["Authorization: BEARER root"],
}
KNOWN = ("inference", "small letters", "admin")
COMPLETION = json.dumps({"prompt": "a"})
CHAT = json.dumps({"messages": [{"role": "user", "content": "a"}]})

# Method, target, body, and what each gets who is known: without the scope admin, and with it.
MATRIX: list[tuple[str, str, str, int, int]] = [
    ("POST", "/v1/completions", COMPLETION, 200, 200),
    ("POST", "/v1/chat/completions", CHAT, 200, 200),
    ("GET", "/v1/models", "", 200, 200),
    ("GET", "/v1/models/{model:path}", "", 404, 404),
    ("GET", "/version", "", 200, 200),
    ("GET", "/metrics", "", 200, 200),
    ("GET", "/v1/plugins", "", 403, 200),
    # Plugins' routes.
    ("GET", "/mine", "", 200, 200),
    ("GET", "/mine/admin", "", 403, 200),
    ("GET", "/mine/public", "", 200, 200),
    # What no route answers.
    ("GET", "/nowhere", "", 404, 404),
    ("GET", "/v1/completions", "", 405, 405),
    ("OPTIONS", "/v1/completions", "", 405, 405),
    ("POST", "/health", "", 405, 405),
    # Spellings that a guard by prefix lets pass, or that look like an open path.
    ("POST", "//v1/completions", COMPLETION, 404, 404),
    ("POST", "/V1/completions", COMPLETION, 404, 404),
    ("POST", "/v1/%63ompletions", COMPLETION, 200, 200),
    ("POST", "/v1%2Fcompletions", COMPLETION, 200, 200),
    ("POST", "/v1/completions?x=/livez", COMPLETION, 200, 200),
    ("GET", "/v1/%70lugins", "", 403, 200),
    ("GET", "/livez/../v1/plugins", "", 404, 404),
    ("GET", "/livez/", "", 404, 404),
    ("GET", "//livez", "", 404, 404),
    ("GET", "/LIVEZ", "", 404, 404),
    ("GET", "/livez%0A", "", 200, 200),
    ("GET", "/livez%2F..", "", 404, 404),
]
OPEN = ("/livez", "/readyz", "/health")


class Routes:
    """A plugin with a route that asks for nothing special, and two that do."""

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("mine", lambda: self)

    def routes(self) -> list[Any]:
        return [
            Route("/mine", self.answer),
            ScopedRoute("/mine/admin", self.answer, needs={"admin"}, methods=["GET"]),
            ScopedRoute("/mine/public", self.answer, needs=set(), methods=["GET"]),
            WebSocketRoute("/mine/socket", self.socket),
        ]

    async def answer(self, request: Request) -> PlainTextResponse:
        principal = request.state.principal
        return PlainTextResponse("nobody" if principal is None else principal.name)

    async def socket(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(websocket.state.principal.name)
        await websocket.close()


def ask(method: str, target: str, body: str, headers: list[str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: a", "Connection: close", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", body]).encode()


def read_reply(raw: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in rest), body


def check_refusal(status: int, headers: dict[str, str], body: bytes, who: str) -> None:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert b"kkk" not in body and b"sesam" not in body
    if status == 403:
        assert (error["type"], error["code"]) == ("permission_error", "missing_scope")
        assert "www-authenticate" not in headers
    else:
        code = "missing_api_key" if who == "none" else "invalid_api_key"
        assert (status, error["type"], error["code"]) == (401, "authentication_error", code)
        assert headers["www-authenticate"] == "bearer"
        assert (b"Authorization: Bearer KEY" in body) == (who == "none")
    assert headers["x-request-id"]


def test_every_route_with_every_credential(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Over the real HTTP server: no route, spelling or header leads around the keys."""

    async def run() -> None:
        async with serve_script(say("a"), plugins=[Routes()], settings=KEYS) as served:
            paths = {route.route.path for route in served.runtime.endpoints.routes}
            covered = {target for _, target, *_ in MATRIX} | set(OPEN) | {"/mine/socket"}
            assert paths <= covered, "a route without a row"
            async with listening(served.runtime) as port:
                for who, headers in BEARER.items():
                    for method, target, body, scoped, admin in MATRIX:
                        reply = read_reply(await exchange(port, ask(method, target, body, headers)))
                        known = admin if who == "admin" else scoped
                        assert reply[0] == (known if who in KNOWN else 401), (who, method, target)
                        if reply[0] in (401, 403):
                            check_refusal(*reply, who)
                    for target in OPEN:
                        for method in ("GET", "HEAD"):
                            reply = read_reply(
                                await exchange(port, ask(method, target, "", headers))
                            )
                            assert reply[0] == 200, (who, method, target)

    asyncio.run(run())
    assert "sesame" not in caplog.text and "root" not in caplog.text


def test_without_a_key_every_route_is_open(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), plugins=[Routes()]) as served:
            for path in (*OPEN, "/version", "/metrics", "/v1/models", "/v1/plugins", "/mine/admin"):
                for headers in ({}, {"authorization": "Bearer x"}):
                    reply = await served.http.get(path, headers=headers)
                    assert reply.status_code == 200, path
            assert (await served.http.get("/mine")).text == "nobody"
            assert (await served.http.get("/nowhere")).status_code == 404

    asyncio.run(run())


def test_a_preflight_is_answered_and_a_refusal_can_be_read_by_the_page(serve_script: Any) -> None:
    async def run() -> None:
        settings = {**KEYS, "allowed_origins": ("http://page",)}
        async with serve_script(say("a"), settings=settings) as served:
            asked = {
                "origin": "http://page",
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            }
            preflight = await served.http.options("/v1/completions", headers=asked)
            assert preflight.status_code == 200
            assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
            refused = await served.http.get("/v1/models", headers={"origin": "http://page"})
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == "http://page"

    asyncio.run(run())


def test_a_refused_request_is_not_read_and_reaches_no_engine(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), settings=KEYS) as served:
            async with listening(served.runtime) as port:
                head = ask("POST", "/v1/completions", "", ["Content-Length: 1000000"])
                reply = read_reply(await exchange(port, head, half_close=True))
            assert reply[0] == 401
            assert served.engine.requests == []

    asyncio.run(run())


class Watching:
    """A plugin that notes as whose each of its hooks is told of a request."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    @hookimpl
    def before_request(self, request: Any, principal: Principal | None) -> None:
        self.told.append(("before_request", principal))

    @hookimpl
    def admit(self, principal: Principal | None, load: Any) -> None:
        self.told.append(("admit", principal))

    @hookimpl
    def metric_labels(self, principal: Principal | None) -> None:
        self.told.append(("metric_labels", principal))

    @hookimpl
    def request_finished(self, record: Any) -> None:
        self.told.append(("request_finished", record.principal))


@pytest.mark.parametrize("settings", [KEYS, {}], ids=["closed", "open"])
def test_the_hooks_and_the_engine_learn_who_asks(
    serve_script: Any, settings: dict[str, Any]
) -> None:
    async def run() -> None:
        watching = Watching()
        async with serve_script(say("a"), plugins=[watching], settings=settings) as served:
            headers = {"authorization": "Bearer root"}
            body = {"prompt": "a", "model": "m"}
            await served.http.post("/v1/completions", json=body, headers=headers)
            async with asyncio.timeout(5):
                while len(watching.told) < 4:
                    await asyncio.sleep(0.001)
            told = dict(watching.told)
            name = "admin-key-1" if settings else None
            scopes = frozenset({"inference", "admin"})
            principal = Principal("admin-key-1", scopes) if settings else None
            assert told.pop("request_finished") == name
            assert told == dict.fromkeys(("before_request", "admit", "metric_labels"), principal)
            assert [request.principal for request in served.engine.requests] == [name]

    asyncio.run(run())


# -- plugins' routes in the place of built-in ones -------------------------------------------------


class Replacing:
    """A plugin that stands in for built-in routes."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("replacing", lambda: self)

    def routes(self) -> list[Route]:
        return [Route(path, self.answer) for path in self.paths]

    async def answer(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("replaced")


def test_a_plugins_route_is_closed_also_where_it_replaces_an_open_one(serve_script: Any) -> None:
    async def run() -> None:
        plugin = Replacing("/health", "/v1/plugins")
        async with serve_script(say("a"), plugins=[plugin], settings=KEYS) as served:

            async def status(path: str, key: str) -> int:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                reply = await served.http.get(path, headers=headers)
                assert reply.status_code != 200 or reply.text == "replaced"
                return int(reply.status_code)

            assert [await status("/health", key) for key in ("", "sesame")] == [401, 200]
            asked = [await status("/v1/plugins", key) for key in ("", "sesame", "root")]
            assert asked == [401, 403, 200], "it needs what the built-in one needed"
            assert (await served.http.get("/livez")).status_code == 200

    asyncio.run(run())


def test_paths_are_those_below_where_the_application_is_mounted(serve_script: Any) -> None:
    async def run() -> None:
        tenants = Tenants()
        async with serve_script(say("a"), plugins=[tenants, Mounting()], settings=KEYS) as served:
            outer = Starlette(routes=[Mount("/deep", served.runtime.app)])
            transport = httpx.ASGITransport(outer)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                assert (await http.get("/deep/livez")).status_code == 200
                assert (await http.get("/deep/v1/models")).status_code == 401
                assert (await http.get("/deep/livez/v1/models")).status_code == 401
                reply = await http.get("/deep/app/x", headers={"x-tenant": "blue"})
                assert reply.text == "/app/x"
            assert tenants.heads[-1].path == "/app/x"

    asyncio.run(run())


class Mounting:
    """A plugin that mounts an application, which asks for the request's head."""

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("mounting", lambda: self)

    def routes(self) -> list[Mount]:
        return [Mount("/app", routes=[Route("/x", self.answer)])]

    async def answer(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(head_of(request.scope).path)


def test_a_route_that_needs_what_nobody_has_is_refused() -> None:
    for wrong in ({"admin", "root"}, "admin"):
        with pytest.raises(ValueError, match=r"/x: no scope is called .* admin, inference"):
            ScopedRoute("/x", Replacing().answer, needs=wrong, methods=["GET"])  # type: ignore[arg-type]


# -- WebSockets ------------------------------------------------------------------------------------


async def open_socket(
    app: Any, path: str, key: str | None, *, can_answer: bool = False
) -> list[dict[str, Any]]:
    """What the application sends to a WebSocket."""
    sent: list[dict[str, Any]] = []
    received = iter([{"type": "websocket.connect"}])

    async def receive() -> dict[str, Any]:
        return next(received, {"type": "websocket.disconnect", "code": 1000})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"authorization", f"Bearer {key}".encode())] if key else [],
        "extensions": {"websocket.http.response": {}} if can_answer else {},
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("path", ["/mine/socket", "/nowhere", "/health"])
def test_a_web_socket_needs_a_key_too(serve_script: Any, path: str) -> None:
    async def run() -> None:
        async with serve_script(say("a"), plugins=[Routes()], settings=KEYS) as served:
            app = served.runtime.app
            (closed,) = await open_socket(app, path, None)
            assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
            start, *_ = await open_socket(app, path, "wrong", can_answer=True)
            assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
            sent = await open_socket(app, path, "sesame")
            if path == "/mine/socket":
                assert [each.get("text") for each in sent] == [None, "api-key-2", None]
                assert sent[0]["type"] == "websocket.accept"
            else:
                assert sent[0]["type"] == "websocket.close"

    asyncio.run(run())


# -- authenticators and the hook -------------------------------------------------------------------


class Tenants:
    """A plugin whose hook knows the header ``x-tenant``, and an authenticator that knows
    ``x-badge``."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []

    @hookimpl
    async def authenticate(self, request: RequestHead) -> Principal | None:
        self.heads.append(request)
        tenant = request.headers.get("x-tenant")
        if tenant is None:
            return None
        return Principal(tenant, frozenset({"admin"} if tenant == "boss" else {"inference"}))

    @hookimpl
    def authenticator(self) -> Named:
        return Named("badges", Badges)


class Badges:
    built: Any = None

    def __init__(self, config: Any) -> None:
        Badges.built = config

    async def authenticate(self, head: RequestHead) -> Principal | None:
        badge = head.headers.get("x-badge")
        return None if badge is None else Principal(f"badge-{badge}")


def test_keys_come_first_then_the_authenticator_then_the_hook(serve_script: Any) -> None:
    async def run() -> None:
        tenants = Tenants()
        async with serve_script(
            say("a"),
            plugins=[Routes(), tenants],
            settings={**KEYS, "authenticator": "badges"},
            hooks={"config": {"object:Tenants": {"door": 7}}},
        ) as served:
            assert dict(Badges.built) == {"door": 7}
            assert served.runtime.credentials.summary() == (
                "closed but for the probes; keys: 3; authenticator: badges; plugins: object:Tenants"
            )

            async def name(**headers: str) -> str:
                given = {key.replace("_", "-"): value for key, value in headers.items()}
                reply = await served.http.get("/mine?x=1", headers=given)
                return reply.text if reply.status_code == 200 else str(reply.status_code)

            everything = {"authorization": "Bearer sesame", "x_badge": "9", "x_tenant": "blue"}
            assert await name(**everything) == "api-key-2"
            assert tenants.heads == []
            assert await name(x_badge="9", x_tenant="blue") == "badge-9"
            assert tenants.heads == []
            assert await name(authorization="Bearer wrong", x_tenant="blue") == "blue"
            assert await name(x_other="blue") == "401"
            assert [head.headers.get("x-tenant") for head in tenants.heads] == ["blue", None]
            head = tenants.heads[0]
            assert (head.method, head.path, head.query) == ("GET", "/mine", "x=1")
            assert head.headers["authorization"] == "Bearer wrong"
            # Scopes are what the plugin says, and no more.
            assert await name(x_tenant="boss") == "403"
            boss = await served.http.get("/v1/plugins", headers={"x-tenant": "boss"})
            assert boss.status_code == 200

    asyncio.run(run())


def test_a_plugin_that_asks_closes_the_server_also_once_it_is_out(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), plugins=[Tenants()]) as served:
            known = {"x-tenant": "blue"}
            reply = await served.http.get("/v1/models")
            assert reply.status_code == 401 and "Bearer" not in reply.text, "there are no keys"
            assert (await served.http.get("/v1/models", headers=known)).status_code == 200
            served.runtime.host.deny(Denied("object:Tenants", "engine", "run", "gone"))
            assert (await served.http.get("/v1/models", headers=known)).status_code == 401
            assert (await served.http.get("/livez")).status_code == 200

    asyncio.run(run())


def test_a_plugin_that_is_out_from_the_start_opens_nothing(serve_script: Any) -> None:
    class Halved(Tenants):
        @hookimpl
        def endpoint(self) -> Endpoint:
            raise OSError("no licence")

    async def run() -> None:
        async with serve_script(say("a"), plugins=[Halved()]) as served:
            (report,) = [each for each in served.runtime.host.describe() if each.group == "object"]
            assert report.state == "out"
            reply = await served.http.get("/v1/models", headers={"x-tenant": "blue"})
            assert reply.status_code == 401

    asyncio.run(run())


def wrong_answers() -> Iterator[tuple[str, Callable[[], Any], str]]:
    def raise_(error: BaseException) -> Any:
        raise error

    yield "raises", lambda: raise_(ValueError("the database at 10.0.0.9")), "10.0.0.9"
    yield "exits", lambda: raise_(SystemExit(3)), "SystemExit"
    yield "cancels", lambda: raise_(asyncio.CancelledError()), "CancelledError"
    yield "hangs", lambda: asyncio.sleep(30), "0.05 s"
    yield "says yes", lambda: True, "bool"
    yield "no such scope", lambda: Principal("x", frozenset({"root"})), "root"  # type: ignore[arg-type]
    yield "no name", lambda: Principal(""), "name"
    yield "a name of another kind", lambda: Principal(type("Text", (str,), {})("x")), "Text"


class Faulty:
    """A hook and an authenticator that give what the test says."""

    def __init__(self, give: Callable[[], Any], has_hook: bool) -> None:
        self.give, self.has_hook = give, has_hook

    async def answer(self) -> Any:
        given = self.give()
        return await given if asyncio.iscoroutine(given) else given

    @hookimpl
    async def authenticate(self, request: RequestHead) -> Any:
        return await self.answer() if self.has_hook else Principal("never asked")

    @hookimpl
    def authenticator(self) -> Named:
        plugin = self

        class Broken:
            def __init__(self, config: Any) -> None:
                pass

            async def authenticate(self, head: RequestHead) -> Any:
                return None if plugin.has_hook else await plugin.answer()

        return Named("broken", Broken)


@pytest.mark.parametrize("has_hook", [True, False], ids=["hook", "authenticator"])
@pytest.mark.parametrize(
    ("give", "logged"), [case[1:] for case in wrong_answers()], ids=[c[0] for c in wrong_answers()]
)
def test_whoever_fails_to_say_denies_and_is_named_in_the_log_alone(
    serve_script: Any,
    caplog: pytest.LogCaptureFixture,
    has_hook: bool,
    give: Callable[[], Any],
    logged: str,
) -> None:
    async def run() -> None:
        async with serve_script(
            say("a"),
            plugins=[Faulty(give, has_hook)],
            settings={**KEYS, "authenticator": "broken"},
            hooks={"front_hook_timeout_s": 0.05},
        ) as served:
            reply = await served.http.get("/v1/models", headers={"authorization": "Bearer x"})
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == "authentication_failed"
            assert reply.headers["www-authenticate"] == "Bearer"
            for internal in ("10.0.0.9", "Faulty", "SystemExit", "root"):
                assert internal not in reply.text
            good = await served.http.get("/v1/models", headers={"authorization": "Bearer sesame"})
            assert good.status_code == 200, "whoever has a key is not asked about"

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if "object:Faulty" in r.getMessage()]
    assert logged in line and "'/v1/models'" in line and "Bearer" not in line


def serve_once(serve_script: Any, **wanted: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), **wanted):
            pass

    asyncio.run(run())


def test_an_authenticator_may_be_a_class_path(
    serve_script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "door_keeper.py").write_text(
        "from hookserve.hookspecs import Principal\n"
        "class Keeper:\n"
        "    def __init__(self, config):\n"
        "        self.word = dict(config).get('word', 'please')\n"
        "    async def authenticate(self, head):\n"
        "        if head.headers.get('x-word') == self.word:\n"
        "            return Principal('polite')\n"
        "class Deaf:\n"
        "    def __init__(self, config):\n"
        "        pass\n"
        "    def authenticate(self, head):\n"
        "        return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def run() -> None:
        settings = {"authenticator": "door_keeper:Keeper"}
        async with serve_script(say("a"), plugins=[Routes()], settings=settings) as served:
            assert (await served.http.get("/mine")).status_code == 401
            reply = await served.http.get("/mine", headers={"x-word": "please"})
            assert reply.text == "polite"

    asyncio.run(run())
    with pytest.raises(RequiredPluginError, match="async def authenticate") as caught:
        serve_once(serve_script, settings={"authenticator": "door_keeper:Deaf"})
    assert caught.value.exit_code == 78
    assert "--authenticator" in str(caught.value)
    with pytest.raises(PluginError, match="Nobody"):
        serve_once(serve_script, settings={"authenticator": "door_keeper:Nobody"})


def test_an_authenticator_that_nobody_has_stops_the_start(serve_script: Any) -> None:
    with pytest.raises(UnknownNameError, match="badges"):
        serve_once(serve_script, plugins=[Tenants()], settings={"authenticator": "badge"})


def test_the_start_stops_where_the_chosen_authenticators_plugin_goes_out(serve_script: Any) -> None:
    async def run() -> None:
        settings = {"authenticator": "badges"}
        async with serve_script(say("a"), plugins=[Tenants()], settings=settings) as served:
            served.runtime.credentials.check()
            served.runtime.host.deny(Denied("object:Tenants", "engine", "run", "no licence"))
            with pytest.raises(RequiredPluginError, match="no licence"):
                served.runtime.credentials.check()

    asyncio.run(run())
