"""Tools and reasoning over HTTP: what is found in the engine's text, streamed and not, and what is
refused before it sees anything."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from hookserve.engine.messages import EngineCoreOutput
from hookserve.engine.text.tool_calls import ExtractedToolCallInformation
from hookserve.engine.text.tool_parser import ToolParser
from hookserve.hookspecs import Named, RequiredPluginError, UnknownNameError, hookimpl
from hookserve.plugins_builtin.hermes_tool_parser import HermesToolParser
from hookserve.server import chat_parsers
from scripted_engine import say

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "description": "now"}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
BOTH = f'Let me see.\n{PARIS}\n<tool_call>{{"name": "time", "arguments": {{}}}}</tool_call>'
LISTED = (
    '[{"name": "weather", "parameters": {"city": "Paris"}}, {"name": "time", "parameters": {}}]'
)
MAY_CHOOSE: Mapping[str, Any] = MappingProxyType(
    {"settings": {"enable_auto_tool_choice": True}, "tool_call_parser": "hermes"}
)
EOS = 256


def ends(text: str) -> Any:
    """A model that ends by itself, with its end token."""

    def script(request: Any) -> list[EngineCoreOutput]:
        return [*say(text + ".")(request)[:-1], EngineCoreOutput(request.request_id, [EOS], "stop")]

    return script


def folded(events: str) -> dict[str, Any]:
    """The message that a stream makes, with what each of its deltas must look like."""
    message: dict[str, Any] = {"content": None, "calls": {}, "reasoning": "", "reasons": []}
    for line in events.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        assert "error" not in event, event
        message["usage"] = event.get("usage")
        for choice in event["choices"]:
            add_delta(message, choice["delta"])
            if choice["finish_reason"]:
                message["reasons"].append(choice["finish_reason"])
    return message


def add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    if delta.get("content"):
        message["content"] = (message["content"] or "") + delta["content"]
    message["reasoning"] += delta.get("reasoning_content", "")
    assert delta.get("reasoning_content") == delta.get("reasoning")
    for part in delta.get("tool_calls", ()):
        call = message["calls"].setdefault(part["index"], {"arguments": ""})
        if "id" in part:
            assert call == {"arguments": ""}, "id and name come once, and first"
            assert part["type"] == "function"
            call |= {"id": part["id"], "name": part["function"]["name"]}
        assert "id" in call
        call["arguments"] += part["function"]["arguments"]


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of the calls of a whole message, or of a folded one."""
    whole = message.get("tool_calls")
    if whole is not None:
        return [(call["function"]["name"], call["function"]["arguments"]) for call in whole]
    calls = message.get("calls", {})
    assert list(calls) == list(range(len(calls)))
    return [(call["name"], call["arguments"]) for call in calls.values()]


def ask_both(serve_script: Any, script: Any, body: dict[str, Any], **served: Any) -> Any:
    """The message, finish reason and usage of a whole reply, after a stream said the same."""

    async def run() -> tuple[dict[str, Any], str, dict[str, Any], Any]:
        async with serve_script(script, **served) as server:
            given = {"messages": [USER], "max_tokens": 100, **body}
            whole = await server.http.post(PATH, json=given)
            assert whole.status_code == 200, whole.text
            (choice,) = whole.json()["choices"]
            options = {"stream": True, "stream_options": {"include_usage": True}}
            streamed = folded((await server.http.post(PATH, json=given | options)).text)
            message = choice["message"]
            assert (streamed["content"] or "") == (message["content"] or "")
            assert streamed["reasoning"] == message.get("reasoning_content", "")
            assert calls_of(streamed) == calls_of(message)
            assert streamed["reasons"] == [choice["finish_reason"]]
            usage = whole.json()["usage"]
            details = ("completion_tokens", "completion_tokens_details")
            assert [streamed["usage"].get(n) for n in details] == [usage.get(n) for n in details]
            return message, choice["finish_reason"], usage, server.engine.requests[0]

    return asyncio.run(run())


# -- calls that the model makes by itself --------------------------------------------------------


def test_the_calls_of_a_model_are_found(serve_script: Any) -> None:
    message, reason, _, request = ask_both(serve_script, ends(BOTH), {"tools": TOOLS}, **MAY_CHOOSE)
    assert message["content"] == "Let me see.\n"
    assert calls_of(message) == [("weather", '{"city": "Paris"}'), ("time", "{}")]
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(each.startswith("call_") for each in ids)
    assert reason == "tool_calls"
    assert request.params.structured_outputs is None


@pytest.mark.parametrize(
    ("script", "body", "content", "calls", "reason"),
    [
        (ends("Hello"), {}, "Hello", [], "stop"),
        (ends(PARIS), {}, None, ["weather"], "tool_calls"),
        (say(PARIS), {}, None, ["weather"], "length"),
        (say(PARIS[:-20]), {}, PARIS[:-20], [], "length"),
        (ends(PARIS), {"tool_choice": "none"}, PARIS, [], "stop"),
        (ends(BOTH), {"parallel_tool_calls": False}, None, ["weather"], "tool_calls"),
        (ends("<tool_call>{]"), {}, "<tool_call>{]", [], "stop"),
    ],
    ids=["no call", "a call", "cut behind", "cut within", "none", "one alone", "malformed"],
)
def test_one_rule_says_how_a_reply_ended(
    serve_script: Any, script: Any, body: Any, content: Any, calls: list[str], reason: str
) -> None:
    message, said, *_ = ask_both(serve_script, script, {"tools": TOOLS, **body}, **MAY_CHOOSE)
    assert [name for name, _ in calls_of(message)] == calls
    assert said == reason
    if content is not None or not calls:
        assert message["content"] == content
    assert ("tool_calls" in message) == bool(calls), "never an empty list"


def test_every_choice_is_parsed_by_itself(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(ends(PARIS), **MAY_CHOOSE) as served:
            body = {"messages": [USER], "tools": TOOLS, "n": 2}
            whole = (await served.http.post(PATH, json=body)).json()["choices"]
            events = (await served.http.post(PATH, json=body | {"stream": True})).text
        assert [calls_of(choice["message"]) for choice in whole] == [
            [("weather", '{"city": "Paris"}')]
        ] * 2
        assert events.count('"finish_reason":"tool_calls"') == 2

    asyncio.run(run())


def test_what_takes_long_is_read_beside_the_streams(serve_script: Any, monkeypatch: Any) -> None:
    threads: dict[str, list[threading.Thread]] = {"adjust_request": [], "read_calls": []}
    for name, seen in threads.items():
        own = getattr(HermesToolParser, name)

        def watched(*args: Any, own: Any = own, seen: Any = seen) -> Any:
            seen.append(threading.current_thread())
            return own(*args)

        monkeypatch.setattr(HermesToolParser, name, watched)
    monkeypatch.setattr(chat_parsers, "MAX_CHARS_ON_LOOP", 20)
    ask_both(serve_script, ends(PARIS), {"tools": TOOLS}, **MAY_CHOOSE)
    main = threading.current_thread()
    assert threads["adjust_request"] and main not in threads["adjust_request"]
    assert threads["read_calls"][0] is not main, "of the whole reply"
    assert main in threads["read_calls"], "of the stream, a little at a time"


def test_every_token_has_its_logprob_and_its_id_where_text_is_held_back(serve_script: Any) -> None:
    async def run() -> None:
        text = "<think>a</think>" + PARIS
        async with serve_script(say(text), reasoning_parser="qwen3", **MAY_CHOOSE) as served:
            body = {"messages": [USER], "tools": TOOLS, "stream": True, "return_token_ids": True}
            events = (await served.http.post(PATH, json=body)).text
        ids: list[int] = []
        for line in events.split("\n\n"):
            if line.startswith("data: {"):
                ids += json.loads(line[6:])["choices"][0].get("token_ids") or []
        assert bytes(ids).decode() == text

    asyncio.run(run())


# -- calls that the request asks for -------------------------------------------------------------


def test_required_calls_are_held_to_their_schemas(serve_script: Any) -> None:
    body = {"tools": TOOLS, "tool_choice": "required"}
    message, reason, _, request = ask_both(serve_script, ends(LISTED), body)
    assert message["content"] is None
    assert calls_of(message) == [("weather", '{"city": "Paris"}'), ("time", "{}")]
    assert reason == "tool_calls"
    form = request.params.structured_outputs
    assert form is not None
    schema = form.json
    assert (schema["minItems"], schema["maxItems"] > 1) == (1, True)
    names = [each["properties"]["name"]["const"] for each in schema["items"]["anyOf"]]
    assert names == ["weather", "time"]
    assert schema["$defs"]["0"] == CITY
    assert schema["$defs"]["1"]["additionalProperties"] is False, "no parameters: none at all"


def test_a_named_call_is_its_arguments_alone(serve_script: Any) -> None:
    body = {"tools": TOOLS, "tool_choice": NAMED}
    text = '{"city": "Pa\\"ris"}'
    message, reason, _, request = ask_both(serve_script, ends(text), body)
    assert calls_of(message) == [("weather", text)]
    assert reason == "stop", "the model had no choice"
    assert request.params.structured_outputs.json == CITY


def test_a_required_call_that_is_cut_short_keeps_what_there_is(serve_script: Any) -> None:
    body = {"tools": TOOLS, "tool_choice": "required"}
    message, reason, *_ = ask_both(serve_script, say(LISTED[:50]), body)
    assert (calls_of(message), reason) == ([("weather", LISTED[35:50])], "length")


def test_one_call_alone_is_one_in_the_schema(serve_script: Any) -> None:
    body = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    *_, request = ask_both(serve_script, ends(LISTED), body)
    assert request.params.structured_outputs.json["maxItems"] == 1


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_has_no_other_form_and_no_thoughts(serve_script: Any, choice: Any) -> None:
    body = {"tools": TOOLS, "tool_choice": choice}
    text = LISTED if choice == "required" else '{"city": "Paris"}'
    message, *_ = ask_both(serve_script, ends(text), body, reasoning_parser="deepseek_r1")
    assert calls_of(message)[0] == ("weather", '{"city": "Paris"}')
    assert "reasoning_content" not in message


# -- reasoning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "body", "reasoning", "content", "count"),
    [
        ("<think>a b</think>c", {}, "a b", "c", len("<think>a b")),
        ("a b</think>\n\nc", {}, "a b", "\n\nc", len("a b")),
        ("<think>a b", {}, "a b", None, len("<think>a b")),
        ("a b", {"chat_template_kwargs": {"enable_thinking": False}}, "", "a b", 0),
        ("<think>a</think>c", {"include_reasoning": False}, "", "c", len("<think>a")),
        ("<think>ab</think>c", {"stop": "b"}, "a", None, len("<think>ab")),
    ],
    ids=["both", "no start", "cut short", "off", "left out", "a stop within"],
)
def test_reasoning_is_parted_from_content(
    serve_script: Any, text: str, body: Any, reasoning: str, content: Any, count: int
) -> None:
    message, _, usage, _ = ask_both(serve_script, say(text), body, reasoning_parser="qwen3")
    assert message.get("reasoning_content", "") == reasoning
    assert message["content"] == content
    assert usage["completion_tokens_details"]["reasoning_tokens"] == count


def test_calls_are_found_behind_reasoning_and_not_within(serve_script: Any) -> None:
    text = f"<think>{PARIS}</think>\n\n{PARIS}"
    message, reason, *_ = ask_both(
        serve_script, ends(text), {"tools": TOOLS}, reasoning_parser="qwen3", **MAY_CHOOSE
    )
    assert message["reasoning_content"] == PARIS
    assert calls_of(message) == [("weather", '{"city": "Paris"}')]
    assert (message["content"], reason) == (None, "tool_calls")


def test_without_a_parser_all_text_is_content_and_usage_says_nothing_of_it(
    serve_script: Any,
) -> None:
    message, _, usage, _ = ask_both(serve_script, say("<think>a</think>b"), {})
    assert message == {"role": "assistant", "content": "<think>a</think>b", "refusal": None}
    assert "completion_tokens_details" not in usage


# -- prompts -------------------------------------------------------------------------------------

TOOL_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}[{{ m.role }}"
    "{% for c in m.tool_calls or [] %} {{ c.id }}={{ c.function.arguments.city }}{% endfor %}"
    "{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}"
    "{% if m.reasoning_content %} ({{ m.reasoning }}){% endif %}:{{ m.content }}]{% endfor %}"
)
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"P"}'},
}
CONVERSATION = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]


@pytest.mark.parametrize(
    ("body", "hides", "rendered"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, False, "weather;time;"),
        ({"tools": TOOLS, "tool_choice": "none"}, False, "weather;time;"),
        ({"tools": TOOLS, "tool_choice": "none"}, True, ""),
        ({"tools": []}, False, ""),
    ],
    ids=["required", "none", "none, hidden", "no tools"],
)
def test_templates_get_tools_and_calls(
    serve_script: Any, body: Any, hides: bool, rendered: str
) -> None:
    async def run() -> None:
        settings = {"exclude_tools_when_tool_choice_none": hides}
        async with serve_script(
            say("x"), settings=settings, chat_template=TOOL_TEMPLATE, max_model_len=400
        ) as served:
            given = {"messages": CONVERSATION, "max_tokens": 5, **body}
            reply = await served.http.post(PATH, json=given)
            assert reply.status_code == 200, reply.text
            (request,) = served.engine.requests
        text = bytes(request.prompt_token_ids).decode()
        assert text == rendered + "[user:hi][assistant c1=P (hm):][tool c1:rain]"

    asyncio.run(run())


def test_tools_are_part_of_a_prompt_that_is_counted(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("x"), chat_template=TOOL_TEMPLATE) as served:
            body = {"messages": [USER], "tools": TOOLS}
            reply = await served.http.post("/tokenize", json=body)
        assert bytes(reply.json()["tokens"]).decode() == "weather;time;[user:hi]"

    asyncio.run(run())


def test_tools_that_the_template_does_not_look_at_are_named(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("x"), **MAY_CHOOSE) as served:
            reply = await served.http.post(PATH, json={"messages": [USER], "tools": TOOLS})
        assert reply.headers["x-hookserve-unused"] == "tools"

    asyncio.run(run())


def with_message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": "", **fields}]}


def with_arguments(text: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    return with_message(tool_calls=[call])


def with_tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "none"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    function = {"name": "f", "parameters": schema}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (nested(32), "tools"),
        (nested(200), "tools"),
        ({"tools": TOOLS}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOLS[1]], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]], "tool_choice": "none"}, "tools[1].function.name"),
        ({"tools": [{"type": "shell"}], "tool_choice": "none"}, "tools[0].type"),
        (with_tool(), "tools[0].function.name"),
        (with_tool(name="a b"), "tools[0].function.name"),
        (with_tool(name="a\n"), "tools[0].function.name"),
        (with_tool(name="a" * 129), "tools[0].function.name"),
        (with_tool(name="a", parameters="x"), "tools[0].function.parameters"),
        ({"tools": TOOLS * 300, "tool_choice": "none"}, "tools"),
        (with_arguments("{"), "messages[1].tool_calls[0].function.arguments"),
        (with_arguments("[1]"), "messages[1].tool_calls[0].function.arguments"),
        (with_message(tool_call_id="c"), "messages[1].tool_call_id"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [USER | {"reasoning": "x"}]}, "messages[0].reasoning"),
        ({"functions": [{}]}, "functions"),
        ({"tools": TOOLS, "tool_choice": NAMED, "guided_regex": "a"}, "tool_choice"),
    ],
)
def test_what_cannot_be_is_refused_by_path(serve_script: Any, body: Any, param: str) -> None:
    async def run() -> None:
        async with serve_script(say("x")) as served:
            reply = await served.http.post(PATH, json={"messages": [USER], **body})
            assert served.engine.requests == []
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["param"] == param
        assert error["code"], "a word for programs, whoever found the fault"
        assert len(reply.content) < 2000

    asyncio.run(run())


# -- plugins -------------------------------------------------------------------------------------


class Shouting(ToolParser):
    """Every text in capitals is the name of a call; some marks are too much for it."""

    ODD: Mapping[str, Any] = MappingProxyType({"!": "\ud83d", "#": 5})

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        from hookserve.engine.text.tool_calls import FunctionCall, ToolCall

        if "?" in model_output:
            raise LookupError("a secret")
        if model_output in self.ODD:
            return ExtractedToolCallInformation(False, [], self.ODD[model_output])
        is_call = model_output.isupper()
        calls = [ToolCall(FunctionCall(model_output, "{}"))] if is_call else []
        return ExtractedToolCallInformation(is_call, calls, None if is_call else model_output)


class Forgetful(Shouting):
    def adjust_request(self, request: Any) -> Any:
        request.skip_special_tokens = False


class Slow(Shouting):
    is_over = threading.Event()

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        self.is_over.wait(20)
        return super().extract_tool_calls(model_output, request)


class Parsing:
    @hookimpl
    def tool_parser(self) -> list[Named]:
        return [
            Named("shouting", Shouting),
            Named("slow", Slow),
            Named("forgetful", Forgetful),
            Named("half", ToolParser),
            Named("none", int),
        ]


SHOUTING: Mapping[str, Any] = MappingProxyType(
    {
        "settings": {"enable_auto_tool_choice": True},
        "tool_call_parser": "shouting",
        "plugins": [Parsing()],
    }
)


@pytest.mark.parametrize("text", ["STOP", "go on"])
def test_a_parser_that_knows_whole_texts_alone_is_streamed_too(
    serve_script: Any, text: str
) -> None:
    message, reason, *_ = ask_both(serve_script, ends(text), {"tools": TOOLS}, **SHOUTING)
    expected = ([("STOP", "{}")], None) if text == "STOP" else ([], "go on")
    assert (calls_of(message), message["content"]) == expected
    assert reason == ("tool_calls" if text == "STOP" else "stop")


@pytest.mark.parametrize("text", ["?", "!", "#"])
def test_a_parser_that_fails_fails_its_request_under_its_plugins_name(
    serve_script: Any, text: str
) -> None:
    async def run() -> None:
        async with serve_script(say(text), **SHOUTING) as served:
            body = {"messages": [USER], "tools": TOOLS}
            whole = await served.http.post(PATH, json=body)
            events = (await served.http.post(PATH, json=body | {"stream": True})).text
            other = await served.http.post(PATH, json={"messages": [USER]})
        assert whole.status_code == 500
        error = whole.json()["error"]
        assert "object:Parsing" in error["message"]
        assert "secret" not in error["message"]
        assert '"error"' in events
        assert "[DONE]" not in events
        assert other.status_code == 200

    asyncio.run(run())


def test_a_parser_that_gives_no_request_back_fails_it_under_its_name(serve_script: Any) -> None:
    async def run() -> None:
        options = {**SHOUTING, "tool_call_parser": "forgetful"}
        async with serve_script(say("A"), **options) as served:
            reply = await served.http.post(PATH, json={"messages": [USER], "tools": TOOLS})
        assert reply.status_code == 500
        assert "object:Parsing" in reply.json()["error"]["message"]

    asyncio.run(run())


def test_a_parser_that_takes_long_holds_up_its_own_request_alone(serve_script: Any) -> None:
    async def run() -> None:
        options = {**SHOUTING, "tool_call_parser": "slow", "hooks": {"front_hook_timeout_s": 0.3}}
        async with serve_script(say("A"), **options) as served:
            body = {"messages": [USER], "tools": TOOLS}
            slow = asyncio.create_task(served.http.post(PATH, json=body))
            other = await served.http.post(PATH, json={"messages": [USER]})
            assert (other.status_code, slow.done()) == (200, False)
            reply = await slow
            Slow.is_over.set()
        assert reply.status_code == 500
        assert "object:Parsing" in reply.json()["error"]["message"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("served", "error", "said"),
    [
        ({"tool_call_parser": "hermse"}, UnknownNameError, "hermes"),
        ({"reasoning_parser": "qwen"}, UnknownNameError, "qwen3"),
        ({"tool_call_parser": "half", "plugins": [Parsing()]}, Exception, "extract_tool_calls"),
        ({"tool_call_parser": "none", "plugins": [Parsing()]}, Exception, "subclass of"),
        ({"settings": {"enable_auto_tool_choice": True}}, Exception, "--tool-call-parser"),
    ],
)
def test_a_parser_that_cannot_be_had_stops_the_start(
    serve_script: Any, served: Any, error: type[Exception], said: str
) -> None:
    async def run() -> None:
        async with serve_script(say("x"), **served):
            pass

    with pytest.raises(error, match=said):
        asyncio.run(run())


def test_a_parser_whose_plugin_went_out_stops_the_start(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("x"), **SHOUTING) as served:
            (plugin,) = [p for p in served.runtime.host.plugins if p.identity == "object:Parsing"]
            plugin.state, plugin.reason = "out", "it failed elsewhere"
            with pytest.raises(RequiredPluginError, match="--tool-call-parser"):
                served.runtime.parsers.check()
            plugin.state = "active"

    asyncio.run(run())
