"""The form of a text as HTTP requests ask for it: what reaches the engine, what is refused and
where, and that a backend which takes long holds up nobody else."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from hookserve.hookspecs import Named, hookimpl
from hookserve.hookspecs.grammar_types import GrammarSpec
from scripted_engine import say

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def schema_format(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def ask(serve_script: Any, fields: dict[str, Any], path: str = COMPLETIONS, **options: Any) -> Any:
    """The reply, and the requests that the engine got."""

    async def run() -> Any:
        async with serve_script(say("{}"), **options) as served:
            prompt = {"prompt": "a"} if path == COMPLETIONS else {"messages": [USER]}
            reply = await served.http.post(path, json={**prompt, **fields})
            return reply, served.engine.requests

    return asyncio.run(run())


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            {"json": SCHEMA, "disable_any_whitespace": True},
        ),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": json.dumps(SCHEMA)}),
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, {"regex": "a+"}),
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": schema_format()}, {"json": SCHEMA}),
        ({"response_format": schema_format(strict=True)}, {"json": SCHEMA}),
        (
            {"response_format": schema_format({"uniqueItems": True}, strict=False)},
            {"json": {"uniqueItems": True}, "lenient": True},
        ),
    ],
)
def test_each_way_to_ask_reaches_the_engine(
    serve_script: Any, path: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    reply, requests = ask(serve_script, fields, path)
    assert reply.status_code == 200
    form = requests[0].params.structured_outputs
    assert {name: getattr(form, name) for name in expected} == expected
    others = set(form.__struct_fields__) - set(expected)
    assert not any(getattr(form, name) for name in others)


def test_no_form_is_none(serve_script: Any) -> None:
    fields = {"response_format": {"type": "text"}, "structured_outputs": None}
    reply, requests = ask(serve_script, fields, CHAT)
    assert reply.status_code == 200
    assert requests[0].params.structured_outputs is None


SO = "structured_outputs"
RF = "response_format"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({SO: {"regex": "a"}, RF: schema_format()}, RF, "structured_outputs is given too"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "guided_json is given too"),
        ({SO: {}}, SO, "exactly one of json, regex"),
        ({SO: {"regex": "a", "choice": ["a"]}}, SO, "'regex and choice' is not exactly one"),
        ({SO: {"regx": "a"}}, f"{SO}.regx", "unknown field"),
        ({SO: {"structural_tag": "{}"}}, f"{SO}.structural_tag", "unknown field"),
        ({SO: {"regex": ""}}, f"{SO}.regex", "'' is not a text that is not empty"),
        ({SO: {"choice": [""]}}, f"{SO}.choice", "a list of texts, at least one"),
        ({SO: {"regex": 5}}, f"{SO}.regex", "Expected `str | null`, got `int` (given: 5)"),
        ({SO: {"regex": "(["}}, f"{SO}.regex", "unclosed character class"),
        ({SO: {"grammar": "root ::= root"}}, f"{SO}.grammar", "no text can match it"),
        ({SO: {"json": {"$ref": "#"}}}, f"{SO}.json", "no text can match it"),
        ({SO: {"json": "{"}}, f"{SO}.json", "is not the text of a JSON schema"),
        ({SO: {"json": {"uniqueItems": True}}}, f"{SO}.json", "Unimplemented keys"),
        ({"guided_json": 5}, "guided_json", "Expected"),
        ({"guided_choice": []}, "guided_choice", "a list of texts, at least one"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice", "at most 1024 texts"),
        ({"guided_regex": "a" * 8193}, "guided_regex", "at most 8192 bytes"),
        ({"guided_grammar": "bogus !!"}, "guided_grammar", "Expected ::="),
        ({RF: {"type": "json_schema"}}, f"{RF}.json_schema", "it is required"),
        ({RF: {"type": "text", "json_schema": {"name": "x", "schema": {}}}}, f"{RF}.json_schema",
         "the type 'text' has none"),
        ({RF: {"type": "json_schema", "json_schema": {"name": "x"}}}, f"{RF}.json_schema.schema",
         "it is required"),
        ({RF: {"type": "json_schema", "json_schema": {"schema": {}}}}, f"{RF}.json_schema.name",
         "it is required"),
        ({RF: schema_format({"type": "string", "pattern": "(["})}, f"{RF}.json_schema.schema",
         "unclosed character class"),
        ({RF: schema_format({"enum": list(range(30_000))})}, f"{RF}.json_schema.schema", "at most"),
        ({RF: schema_format({"const": "x" * 2**18})}, f"{RF}.json_schema.schema", "at most"),
        ({RF: {"type": "structural_tag"}}, f"{RF}.type",
         "expected one of 'json_object', 'json_schema', 'text' (given: structural_tag)"),
        ({RF: "json"}, RF, "Expected"),
    ],
)  # fmt: skip
def test_what_is_no_form_is_refused_at_the_clients_own_field(
    serve_script: Any, fields: dict[str, Any], param: str, said: str
) -> None:
    reply, requests = ask(serve_script, fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param, error
    assert said in error["message"]
    assert error["message"].startswith(f"{param}: ")
    assert len(error["message"]) < 600
    assert requests == []


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "fields",
    [
        {RF: schema_format(nested(500))},
        {"guided_regex": "(" * 4_000 + "a" + ")" * 4_000},
        {"guided_grammar": "start: " + "(" * 9_000 + '"a"' + ")" * 9_000},
        {"guided_grammar": "start: start"},
        {
            "guided_grammar": "start: r0\n"
            + "".join(f"r{i}: r{i + 1}\n" for i in range(390))
            + "r390: r0"
        },
        {RF: schema_format({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})},
        {"guided_json": {"type": "object", "properties": {"a": False}, "required": ["a"]}},
    ],
)  # fmt: skip
def test_bombs_are_400_and_nothing_more(serve_script: Any, fields: dict[str, Any]) -> None:
    reply, requests = ask(serve_script, fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] and len(reply.content) < 1_000
    assert requests == []


# -- backends of plugins -------------------------------------------------------------------------

MAY_END = threading.Event()
ASKED: list[str] = []


class Slow:
    """Takes any text, but for some."""

    @staticmethod
    def validate(spec: GrammarSpec) -> None:
        ASKED.append(spec.text)
        if spec.text == "wait":
            assert MAY_END.wait(30)
        if spec.text == "broken":
            raise RuntimeError("secret")


class Plugin:
    @hookimpl
    def grammar_backend(self) -> Named:
        return Named("llguidance", "test_form_requests_target:Slow")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A plugin's backend in the place of the built-in one, under a module's name that stands."""
    import sys
    import types

    module = types.ModuleType("test_form_requests_target")
    module.Slow = Slow  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    MAY_END.clear()
    ASKED.clear()
    return {"plugins": [Plugin()]}


def test_a_plugins_backend_takes_the_place_of_ours_and_is_asked_once(
    serve_script: Any, slow: dict[str, Any]
) -> None:
    async def run() -> None:
        async with serve_script(say("{}"), **slow) as served:
            for _ in range(3):
                body = {"prompt": "a", "guided_grammar": "its own"}
                assert (await served.http.post(COMPLETIONS, json=body)).status_code == 200
            reply = await served.http.post(COMPLETIONS, json={**body, "guided_grammar": "broken"})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (500, "plugin_error")
        assert "secret" not in error["message"] and "RuntimeError" in error["message"]
        assert ASKED == ["its own", "broken"]

    asyncio.run(run())


def test_a_backend_that_takes_too_long_refuses_one_and_holds_up_nobody_else(
    serve_script: Any, slow: dict[str, Any]
) -> None:
    async def run() -> None:
        hooks = {"front_hook_timeout_s": 0.3}
        async with serve_script(say("{}"), **slow, hooks=hooks) as served:
            body = {"prompt": "a", "guided_grammar": "wait"}
            first = asyncio.create_task(served.http.post(COMPLETIONS, json=body))
            free = await served.http.post(COMPLETIONS, json={"prompt": "a"})
            assert free.status_code == 200 and not first.done()
            refused = await first
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "guided_grammar")
            assert error["message"].endswith("takes more than 0.3 s to make")
            busy = await served.http.post(COMPLETIONS, json={**body, "guided_grammar": "b"})
            assert (busy.status_code, busy.json()["error"]["code"]) == (503, "grammars_busy")
            assert busy.headers["retry-after"] == "1"
            MAY_END.set()

    asyncio.run(run())
