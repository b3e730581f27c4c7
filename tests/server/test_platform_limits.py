"""What the device says that it cannot do is refused before the engine hears of the request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hookserve.hookspecs import PluginError
from limited_platform import Limited, Misspelt, Offers, Picky
from scripted_engine import say

ROUTES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


def script(sent: list[Any]) -> Any:
    def run(request: Any) -> Any:
        sent.append(request.params)
        return say("hello")(request)

    return run


@pytest.mark.parametrize("route", ROUTES)
def test_a_capability_that_the_platform_lacks_is_a_400_with_its_param(
    serve_script: Any, route: str
) -> None:
    async def run() -> None:
        sent: list[Any] = []
        async with serve_script(script(sent), plugins=[Offers(Limited)]) as served:
            for field, value in {"min_p": 0.1, "logit_bias": {"3": 1}}.items():
                reply = await served.http.post(route, json={**ROUTES[route], field: value})
                assert reply.status_code == 400
                error = reply.json()["error"]
                assert error["param"] == field
                assert error["message"].startswith(f"{field}: ")
                assert error["message"].endswith(" is not supported on platform limited")
            assert sent == []
            for neutral in ({"min_p": 0}, {"logit_bias": {}}, {"min_p": None, "n": 3}):
                reply = await served.http.post(route, json={**ROUTES[route], **neutral})
                assert reply.status_code == 200
            xargs = await served.http.post(route, json={**ROUTES[route], "vllm_xargs": {"a": 1}})
            assert xargs.headers["x-hookserve-unused"] == "vllm_xargs", "a platform reads none"

    asyncio.run(run())


def test_a_platforms_list_with_what_is_no_field_stops_the_start(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), plugins=[Offers(Misspelt)]):
            pass

    said = r"Offers.*Misspelt.unsupported_params names 'minp'.*did you mean min_p"
    with pytest.raises(PluginError, match=said):
        asyncio.run(run())


def test_a_platform_that_has_its_own_words_says_them(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        sent: list[Any] = []
        async with serve_script(script(sent), plugins=[Offers(Picky)]) as served:

            async def post(**fields: Any) -> tuple[int, Any]:
                body = {"prompt": "a", **fields}
                reply = await served.http.post("/v1/completions", json=body)
                return reply.status_code, reply.json().get("error")

            code, error = await post(min_p=0.5)
            assert code == 400
            assert error["param"] == "min_p"
            code, error = await post(n=3)
            assert (code, error["param"], error["message"]) == (400, None, "two choices are enough")
            code, error = await post(seed=13)
            assert (code, error["code"]) == (500, "plugin_error")
            assert "Offers failed in validate_params with ZeroDivisionError" in error["message"]
            assert "validate_params of platform" in caplog.text and "secret is 42" in caplog.text
            assert sent == []
            assert (await post(n=2))[0] == 200

    asyncio.run(run())
