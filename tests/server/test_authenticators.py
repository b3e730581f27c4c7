"""Authenticators and the hook ``authenticate``: who is asked, in which order, and who fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from access_plugins import KEYS, Badges, Routes, Tenants
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
from scripted_engine import say


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
