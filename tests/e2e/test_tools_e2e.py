"""Tools with a real model in real processes: calls that must be made fit their schemas, streamed
and not, and a parser from a file finds those that the model makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness import RunningServer
from reply_fold import events_of, fold

pytestmark = pytest.mark.e2e

PATH = "/v1/chat/completions"
PARSER = """
import json

from hookserve.engine.text.tool_calls import ExtractedToolCallInformation, FunctionCall, ToolCall
from hookserve.engine.text.tool_parser import ToolParser
from hookserve.hookspecs import Named, hookimpl


class All(ToolParser):
    def extract_tool_calls(self, model_output, request):
        call = ToolCall(FunctionCall("say", json.dumps({"text": model_output})))
        return ExtractedToolCallInformation(True, [call], None)


@hookimpl
def tool_parser():
    return Named("all", "my_parser:All")
"""
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 7}},
}
SCHEMAS = {"get_weather": WEATHER, "get_time": {"type": "object", "maxProperties": 0}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
BODY = {
    "messages": [{"role": "user", "content": "How is the weather in Paris today?"}],
    "tools": TOOLS,
    "temperature": 0,
    "max_tokens": 200,
    "parallel_tool_calls": False,
}


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file = tmp_path_factory.mktemp("parser") / "my_parser.py"
    file.write_text(PARSER)
    flags = ["--tool-parser-plugin", str(file), "--tool-call-parser", "all"]
    flags += ["--enable-auto-tool-choice", "--kv-cache-memory-bytes", "64MiB"]
    with RunningServer([str(smollm2_gguf), "--max-model-len", "1024", *flags]) as running:
        yield running


def ask(server: RunningServer, **more: Any) -> tuple[list[tuple[str, Any]], str]:
    """The calls of a reply and how it ended, after a stream said the same."""
    whole = server.post(PATH, BODY | more)
    assert whole.status_code == 200, whole.text
    (choice,) = whole.json()["choices"]
    streamed = server.post(PATH, BODY | more | {"stream": True})
    (folded,) = fold(events_of(streamed.text))["choices"]
    for each in (choice, folded):
        assert each["message"]["content"] is None
        for call in each["message"]["tool_calls"]:
            assert call.pop("id").startswith("call_")
    assert folded == choice
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    return [(call["name"], json.loads(call["arguments"])) for call in calls], choice[
        "finish_reason"
    ]


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
    ids=["required", "named"],
)
def test_a_call_that_must_be_made_fits_its_schema(
    server: RunningServer, choice: Any, reason: str
) -> None:
    calls, ended = ask(server, tool_choice=choice)
    ((name, arguments),) = calls
    jsonschema.validate(arguments, SCHEMAS[name])
    assert ended == reason


def test_a_parser_from_a_file_finds_the_calls_of_a_model(server: RunningServer) -> None:
    calls, ended = ask(server, max_tokens=6)
    ((name, arguments),) = calls
    assert (name, ended) == ("say", "length")
    assert arguments["text"]
    plugins = server.get("/v1/plugins").json()["processes"]["front"]
    (plugin,) = [each for each in plugins if each["identity"].startswith("file:")]
    assert plugin["state"] == "active"


def test_a_schema_that_is_none_is_refused_at_the_tools(server: RunningServer) -> None:
    broken = {"name": "f", "parameters": {"type": "objekt"}}
    body = BODY | {"tools": [{"type": "function", "function": broken}], "tool_choice": "required"}
    reply = server.post(PATH, body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
