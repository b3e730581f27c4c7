"""Keys and scopes: which request reaches which route as whom."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from access_plugins import KEYS, Routes, Tenants
from hookserve.hookspecs import (
    Endpoint,
    Principal,
    hookimpl,
)
from hookserve.server import ScopedRoute
from hookserve.server.request_context import head_of
from http_front import exchange, listening
from scripted_engine import say

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
TOKENS = json.dumps({"tokens": [97]})

# Method, target, body, and what each gets who is known: without the scope admin, and with it.
MATRIX: list[tuple[str, str, str, int, int]] = [
    ("POST", "/v1/completions", COMPLETION, 200, 200),
    ("POST", "/v1/chat/completions", CHAT, 200, 200),
    ("POST", "/tokenize", COMPLETION, 200, 200),
    ("POST", "/detokenize", TOKENS, 200, 200),
    ("GET", "/v1/models", "", 200, 200),
    ("GET", "/v1/models/{model:path}", "", 404, 404),
    ("GET", "/version", "", 200, 200),
    ("GET", "/metrics", "", 200, 200),
    ("GET", "/openapi.json", "", 200, 200),
    ("GET", "/docs", "", 200, 200),
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
