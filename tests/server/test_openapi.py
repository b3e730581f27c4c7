"""``/openapi.json`` and ``/docs``: what they say of which routes, and who may read them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from hookserve.hookspecs import Endpoint, hookimpl
from hookserve.hookspecs.request_calls import FINISH_REASONS
from hookserve.server.openapi_operations import OPERATIONS
from hookserve.server.wire_json import UNUSED_FIELDS
from hookserve.server.wire_replies import FinishReason
from openapi_check import check_events, check_reply
from scripted_engine import say

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def read(serve_script: Any) -> Any:
    """``read(path="/openapi.json", headers={…}, **serve_script's)``: the reply."""

    def get(path: str = "/openapi.json", headers: Any = None, **how: Any) -> Any:
        async def run() -> Any:
            async with serve_script(say("ab"), **how) as served:
                return await served.http.get(path, headers=headers)

        return asyncio.run(run())

    return get


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from parts(each)


def test_every_end_of_a_text_is_in_the_document() -> None:
    assert set(get_args(FinishReason)) == {*FINISH_REASONS, "tool_calls"}


def test_the_document_is_whole(read: Any) -> None:
    reply = read()
    assert reply.headers["content-type"] == "application/json"
    document = reply.json()
    assert document["openapi"] == "3.1.0"
    listed = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert listed == set(OPERATIONS)
    for part in parts(document):
        if "$ref" in part:
            found: Any = document
            for step in part["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            assert isinstance(found, dict)
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert not any("\\Z" in str(part.get("pattern")) for part in parts(document))


def test_every_failure_has_the_envelope(read: Any) -> None:
    document = read().json()
    for each in document["components"]["responses"].values():
        schema = each["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/Error"}
    for item in document["paths"].values():
        for operation in item.values():
            statuses = operation["responses"]
            assert {"400", "401", "413", "500", "503"} < set(statuses)
            assert {each.get("$ref") for status, each in statuses.items() if status != "200"} == {
                f"#/components/responses/{status}" for status in statuses if status != "200"
            }


def test_a_body_may_have_what_the_route_takes_and_no_more(read: Any) -> None:
    schemas = read().json()["components"]["schemas"]
    for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
        decoder = OPERATIONS["POST", path].decoder
        assert decoder is not None
        schema = schemas[decoder.struct.__name__]
        assert schema["additionalProperties"] is False
        assert set(schema["properties"]) == {
            *decoder.struct.__struct_fields__,
            *decoder.not_built,
            *UNUSED_FIELDS,
        }
        assert schema["properties"]["model"] == {"enum": [None, "m", "org/alias"]}


MESSAGE = {"role": "user", "content": "x"}
BODIES = [
    (COMPLETIONS, {"prompt": "x"}, True),
    (COMPLETIONS, {"prompt": ["x", "y"], "n": 2, "stop": ["a"], "logprobs": False}, True),
    (COMPLETIONS, {"prompt": "x", "user": {"any": 1}, "suffix": "", "length_penalty": 1.0}, True),
    (COMPLETIONS, {"prompt": "x", "request_id": "a-b", "model": "org/alias"}, True),
    (COMPLETIONS, {}, False),
    (COMPLETIONS, {"prompt": None}, False),
    (COMPLETIONS, {"prompt": "x", "stop": ""}, False),
    (COMPLETIONS, {"prompt": "x", "stop": ["a"] * 17}, False),
    (COMPLETIONS, {"prompt": "x", "suffix": "y"}, False),
    (COMPLETIONS, {"prompt": "x", "length_penalty": True}, False),
    (COMPLETIONS, {"prompt": "x", "n": 0}, False),
    (COMPLETIONS, {"prompt": "x", "request_id": "a b"}, False),
    (COMPLETIONS, {"prompt": "x", "surprise": 1}, False),
    (COMPLETIONS, {"prompt": "x", "stream_options": {"surprise": 1}}, False),
    (CHAT, {"messages": [MESSAGE]}, True),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, True),
    (CHAT, {"messages": [{**MESSAGE, "refusal": "", "audio": None, "annotations": []}]}, True),
    (CHAT, {"messages": []}, False),
    (CHAT, {"messages": [{**MESSAGE, "audio": {}}]}, False),
    (CHAT, {"messages": [{**MESSAGE, "refusal": "no"}]}, False),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
    (CHAT, {"messages": [{"role": "", "content": "x"}]}, False),
    (CHAT, {"messages": [MESSAGE], "tools": [{"type": "x"}]}, False),
    (CHAT, {"messages": [MESSAGE], "modalities": ["audio"]}, False),
    ("/tokenize", {"prompt": "x"}, True),
    ("/tokenize", {"messages": [MESSAGE]}, True),
    ("/tokenize", {}, False),
    ("/tokenize", {"prompt": "x", "messages": [MESSAGE]}, False),
    ("/detokenize", {"tokens": [65]}, True),
    ("/detokenize", {}, False),
]


def test_the_schemas_say_of_a_body_what_the_server_does(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("ab")) as served:
            document = (await served.http.get("/openapi.json")).json()
            for path, body, accepted in BODIES:
                schema = document["paths"][path]["post"]["requestBody"]["content"]
                schema = schema["application/json"]["schema"] | {
                    "components": document["components"]
                }
                assert Draft202012Validator(schema).is_valid(body) is accepted, (path, body)
                reply = await served.http.post(path, json=body)
                assert reply.status_code == (200 if accepted else 400), (path, body, reply.text)

    asyncio.run(run())


THOUGHT = "<think>Hm.</think>It is "
CALL = '<tool_call>{"name": "paint", "arguments": {"red": 1}}</tool_call>'


def test_calls_and_reasoning_are_as_the_document_says(serve_script: Any) -> None:
    tool = {"type": "function", "function": {"name": "paint"}}
    asked = {"messages": [MESSAGE], "tools": [tool]}
    how = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    settings = {"enable_auto_tool_choice": True}

    async def run() -> None:
        async with serve_script(say(THOUGHT + CALL, "stop"), settings=settings, **how) as served:
            document = (await served.http.get("/openapi.json")).json()
            reply = await served.http.post(CHAT, json=asked)
            message = reply.json()["choices"][0]["message"]
            assert message["reasoning_content"] == "Hm."
            assert message["tool_calls"][0]["function"]["name"] == "paint"
            check_reply(document, CHAT, 200, reply.json())
            reply = await served.http.post(CHAT, json={**asked, "stream": True})
            assert check_events(document, CHAT, reply.text) > 3

    asyncio.run(run())


# -- plugins' routes ---------------------------------------------------------------------------


async def told(request: Request) -> Response:
    """Weigh a parcel.

    In grams.
    """
    return PlainTextResponse("1")


async def untold(request: Request) -> Response:
    return PlainTextResponse("1")


class Parcels:
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/parcels/{name:path}", told, methods=["POST"]),
            Route("/untold", untold, methods=["GET"]),
            Route("/hidden", untold, methods=["GET"], include_in_schema=False),
            Route("/version", untold, methods=["GET"]),
            WebSocketRoute("/live", untold),
            Mount("/files", untold),
        ]


class Plugin:
    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("parcels", Parcels)


def test_a_plugins_route_is_listed_with_what_it_says_of_itself(read: Any) -> None:
    document = read(plugins=[Plugin()]).json()
    paths = document["paths"]
    owner = paths["/untold"]["get"]["x-hookserve-plugin"]
    assert "Plugin" in owner
    common = {"tags": ["plugins"], "x-hookserve-plugin": owner, "x-hookserve-scopes": ["inference"]}
    assert paths["/parcels/{name}"] == {
        "post": {
            "summary": "Weigh a parcel.",
            "description": "In grams.",
            "parameters": [
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            ],
            **common,
        }
    }
    assert paths["/untold"] == {"get": common}
    assert "/hidden" not in paths
    assert "responses" not in paths["/version"]["get"], "the plugin's, not the built-in one"
    assert document["x-hookserve-other-routes"] == ["WebSocket /live", "any method /files"]


# -- who may read it ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_it_can_be_switched_off(read: Any, path: str) -> None:
    reply = read(path, settings={"disable_fastapi_docs": True})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "unknown_route"
    assert read(path).status_code == 200


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_it_is_closed_as_other_routes_are(read: Any, path: str) -> None:
    from hookserve.server.secret import Secret

    settings = {"api_key": (Secret("k"),)}
    assert read(path, settings=settings).status_code == 401
    reply = read(path, {"authorization": "Bearer k"}, settings=settings)
    assert reply.status_code == 200
    if path == "/openapi.json":
        document = reply.json()
        assert document["paths"][COMPLETIONS]["post"]["security"] == [{"key": []}]
        assert document["paths"]["/livez"]["get"]["security"] == []
        assert "key" in document["components"]["securitySchemes"]


def test_an_open_server_asks_for_no_key(read: Any) -> None:
    document = read(settings={"root_path": "/below"}).json()
    assert "securitySchemes" not in document["components"]
    assert "security" not in document["paths"][COMPLETIONS]["post"]
    assert document["servers"] == [{"url": "/below"}]


def test_the_page_needs_nothing_from_elsewhere(read: Any) -> None:
    reply = read("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    page = reply.text
    assert not re.search(r"https?:|//[a-z]+\.|<link|<img|<iframe|\ssrc=|@import|url\(", page)
    assert 'fetch("openapi.json"' in page, "beside the page, whatever stands in front of its path"
    used = set(re.findall(r'getElementById\("(\w+)"\)', page))
    assert used == set(re.findall(r'\sid="(\w+)"', page))
    assert "innerHTML" not in page, "what plugins say is text"
