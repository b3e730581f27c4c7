"""What an HTTP request says to logits processors: any JSON reaches them, and what they say of it is
the answer before the engine hears of the request."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hookserve.engine.errors import ConfigError
from hookserve.hookspecs import Named, hookimpl
from scripted_engine import say

PATHS = ("processors:Counter", "processors:FaultyCounter")
ROUTES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}
NESTED = {"allow": [1, 2.5], "opt": {"k": True, "none": None}, "most": 2**64 - 1}


class Declares:
    @hookimpl
    def logits_processor(self) -> Any:
        return [Named(path.rpartition(":")[2], path) for path in PATHS]


def script(sent: list[Any]) -> Any:
    def run(request: Any) -> Any:
        sent.append(request.params)
        return say("hello")(request)

    return run


@pytest.mark.parametrize("route", ROUTES)
def test_arguments_are_any_json_and_processors_look_at_them(
    serve_script: Any, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        sent: list[Any] = []
        hooks = {"front_hook_timeout_s": 0.5}

        async def post(xargs: Any) -> Any:
            return await served.http.post(route, json={**ROUTES[route], "vllm_xargs": xargs})

        async with serve_script(script(sent), plugins=[Declares()], hooks=hooks) as served:
            reply = await post(NESTED)
            assert (reply.status_code, "x-hookserve-unused" in reply.headers) == (200, False)
            for nothing in (None, {}):
                assert (await post(nothing)).status_code == 200
            assert [params.extra_args for params in sent] == [NESTED, None, None]
            sent.clear()

            refused = await post({"by": "Counter", "at": "x"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "vllm_xargs")
            assert refused.json()["error"]["message"] == "vllm_xargs: at: 'x' is no number"
            refused = await post({"fault": "refuse"})
            assert refused.json()["error"]["message"] == "vllm_xargs: such arguments are not for me"

            for fault, kind in {
                "raise": "ZeroDivisionError",
                "exit": "SystemExit",
                "sleep": "TimeoutError",
            }.items():
                failed = await post({"when": "validate_params", "fault": fault})
                error = failed.json()["error"]
                assert (failed.status_code, error["code"]) == (500, "plugin_error")
                assert f"Declares failed in validate_params with {kind}" in error["message"]
            assert "FaultyCounter" in caplog.text and "the secret is 42" in caplog.text
            assert sent == []
            assert (await post({"when": "apply", "fault": "raise"})).status_code == 200

    asyncio.run(run())


def test_what_is_no_argument_is_refused_and_no_request_names_code(serve_script: Any) -> None:
    async def run() -> None:
        sent: list[Any] = []
        async with serve_script(script(sent), logits_processors=PATHS) as served:
            deep: Any = 1
            for _ in range(40):
                deep = [deep]
            for xargs in ([1], "text", {"a": deep}, {"a": 2**64}, {"a": "x" * 2**16}):
                body = {"prompt": "a", "vllm_xargs": xargs}
                reply = await served.http.post("/v1/completions", json=body)
                error = reply.json()["error"]
                assert (reply.status_code, len(error["message"]) < 400) == (400, True), xargs
                assert (error["param"] or "").startswith("vllm_xargs") or xargs == {"a": 2**64}
            for named in (["os.system"], [{"qualname": "os.system", "args": ["id"]}]):
                body = {"prompt": "a", "logits_processors": named}
                reply = await served.http.post("/v1/completions", json=body)
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unknown_field")
            assert sent == []

    asyncio.run(run())


def test_where_nobody_looks_at_arguments_the_reply_says_so(serve_script: Any) -> None:
    async def run() -> None:
        sent: list[Any] = []
        async with serve_script(script(sent)) as served:
            body = {"prompt": "a", "vllm_xargs": {"k": 1}, "user": "u"}
            reply = await served.http.post("/v1/completions", json=body)
            assert reply.headers["x-hookserve-unused"] == "user, vllm_xargs"
            assert sent[0].extra_args == {"k": 1}

    asyncio.run(run())


def test_no_thread_in_which_a_processor_was_asked_stays_of_a_server(serve_script: Any) -> None:
    before = threading.enumerate()

    async def run() -> list[threading.Thread]:
        async with serve_script(script([]), logits_processors=PATHS) as served:
            body = {"prompt": "a", "vllm_xargs": {"k": 1}}
            assert (await served.http.post("/v1/completions", json=body)).status_code == 200
            made = [each for each in threading.enumerate() if each not in before]
            return [each for each in made if "Counter" in each.name]

    asked = asyncio.run(run())
    assert len(asked) == 2
    for thread in asked:
        thread.join(10)
        assert not thread.is_alive()


def test_a_class_that_the_front_cannot_import_stops_the_start(serve_script: Any) -> None:
    async def run() -> None:
        with pytest.raises(ConfigError, match="--logits-processors nowhere:At"):
            async with serve_script(script([]), logits_processors=("nowhere:At",)):
                pass

    asyncio.run(run())
