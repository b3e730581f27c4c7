"""Parsers of calls and of reasoning as they are written for vLLM, registered by a file or by a
general plugin, at work in a server whose engine is a script."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookserve.engine.messages import EngineCoreOutput
from hookserve.engine.text.tool_calls import ParserRequest
from hookserve.hookspecs import Host, PluginError, PluginSettings
from hookserve.plugins_builtin.vllm_compat.general import GeneralPlugin
from hookserve.plugins_builtin.vllm_compat.parser_manager import ParserManager
from reply_fold import events_of, fold
from scripted_engine import say

pytestmark = pytest.mark.usefixtures("vllm_facade")

PARSERS = '''
import json

from vllm.entrypoints.chat_utils import make_tool_call_id
from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall, DeltaMessage, DeltaToolCall, ExtractedToolCallInformation, FunctionCall,
    ToolCall)
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedToolChoiceParam, ChatCompletionRequest)
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.logger import init_logger
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.tokenizers import TokenizerLike
from vllm.tool_parsers import ToolParser, ToolParserManager

logger = init_logger(__name__)
seen = []


@ToolParserManager.register_module(["bars", "pipes"])
class Bars(ToolParser):
    """``|name{...}|`` is a call."""

    def __init__(self, tokenizer: TokenizerLike, tools=None):
        super().__init__(tokenizer, tools)
        self.bar_id = self.vocab["|"]

    def adjust_request(self, request: ChatCompletionRequest | ResponsesRequest):
        request = super().adjust_request(request)
        if request.tools and request.tool_choice != "none":
            request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, model_output, request):
        seen.append((request.tools[0].function.name, request.tool_choice, request.model,
                     request.messages[-1]["content"], request.skip_special_tokens,
                     isinstance(request, ChatCompletionRequest), len(self.tools)))
        content, _, rest = model_output.partition("|")
        if not rest:
            return ExtractedToolCallInformation(
                tools_called=False, tool_calls=[], content=model_output)
        name, _, arguments = rest.rstrip("|").partition("{")
        call = ToolCall(
            type="function", function=FunctionCall(name=name, arguments="{" + arguments))
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=[call], content=content or None)

    def extract_tool_calls_streaming(
        self, previous_text, current_text, delta_text, previous_token_ids, current_token_ids,
        delta_token_ids, request,
    ):
        assert list(previous_token_ids) + list(delta_token_ids) == list(current_token_ids)
        if self.bar_id not in current_token_ids:
            return DeltaMessage(content=delta_text)
        call = current_text.partition("|")[2]
        if "{" not in call:
            return None
        if not self.current_tool_name_sent:
            self.current_tool_id += 1
            self.current_tool_name_sent = True
            self.prev_tool_call_arr.append({"name": call.partition("{")[0], "arguments": {}})
            self.streamed_args_for_tool.append("{")
            return DeltaMessage(tool_calls=[DeltaToolCall(
                index=0, type="function", id=make_tool_call_id(),
                function=DeltaFunctionCall(name=call.partition("{")[0], arguments="{").model_dump(
                    exclude_none=True))])
        arguments = delta_text.replace("|", "")
        if not arguments:
            self.prev_tool_call_arr[0]["arguments"] = json.loads(call.rstrip("|")[len("look"):])
            return None
        self.streamed_args_for_tool[0] += arguments
        function = DeltaFunctionCall(arguments=arguments).model_dump(exclude_none=True)
        return DeltaMessage(tool_calls=[DeltaToolCall(index=0, function=function)])


class Older(ToolParser):
    """Of the time when a parser was given the tokenizer alone."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer)

    def extract_tool_calls(self, model_output, request):
        call = {"name": self.tools[0].function.name, "arguments": "{}"}
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=[ToolCall(function=call)], content=None)


ToolParserManager.register_module("older", module=Older)


@ReasoningParserManager.register_module("hashed")
class Hashed(ReasoningParser):
    """All up to a ``#``, by tokens."""

    def __init__(self, tokenizer, *args, **kwargs):
        super().__init__(tokenizer, *args, **kwargs)
        seen.append(kwargs["chat_template_kwargs"])
        self.end_id = self.vocab["#"]

    def is_reasoning_end(self, input_ids):
        return self.end_id in input_ids

    def extract_content_ids(self, input_ids):
        return input_ids[input_ids.index(self.end_id) + 1 :] if self.end_id in input_ids else []

    def extract_reasoning(self, model_output, request):
        reasoning, _, content = model_output.partition("#")
        return reasoning or None, content or None

    def extract_reasoning_streaming(
        self, previous_text, current_text, delta_text, previous_token_ids, current_token_ids,
        delta_token_ids,
    ):
        if self.end_id in previous_token_ids:
            return DeltaMessage(content=delta_text)
        if self.end_id in delta_token_ids:
            return None
        return DeltaMessage(reasoning=delta_text)


class Marked(BaseThinkingReasoningParser):
    start_token = property(lambda self: "[")
    end_token = property(lambda self: "]")


def register():
    ReasoningParserManager.register_lazy_module("marked", __name__, "Marked")
'''
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '|look{"at": "it"}|'
EOS = 256
PATH = "/v1/chat/completions"


@pytest.fixture
def parsers(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "bar_parsers.py"
    path.write_text(PARSERS)
    yield path
    for name in ("bar_parsers", "cue_parser"):
        sys.modules.pop(name, None)


def ends(text: str) -> Callable[[Any], list[EngineCoreOutput]]:
    """A model that ends by itself, with its end token."""

    def script(request: Any) -> list[EngineCoreOutput]:
        return [*say(text + ".")(request)[:-1], EngineCoreOutput(request.request_id, [EOS], "stop")]

    return script


def ask_both(serve_script: Any, text: str, body: Any, **how: Any) -> tuple[dict[str, Any], Any]:
    """The choice of a whole reply, which is what the stream's events make, but for ids; and what
    the engine was asked."""

    async def run() -> tuple[Any, Any, Any]:
        async with serve_script(ends(text), **how) as served:
            chat = {"messages": [{"role": "user", "content": "hi"}], "model": "m", **body}
            whole = await served.http.post(PATH, json=chat)
            events = (await served.http.post(PATH, json=chat | {"stream": True})).text
            assert whole.status_code == 200, whole.text
            return whole.json(), fold(events_of(events)), served.engine.requests[0]

    whole, streamed, request = asyncio.run(run())
    (choice,), (other,) = whole["choices"], streamed["choices"]
    for each in (choice, other):
        for call in each["message"].get("tool_calls", ()):
            assert call.pop("id").startswith("call_")
    assert other["message"] == choice["message"]
    assert other["finish_reason"] == choice["finish_reason"]
    return choice, request


def by_file(path: Path, tool: str, **model: Any) -> dict[str, Any]:
    """``--tool-parser-plugin`` and ``--tool-call-parser``."""
    return {
        "settings": {"enable_auto_tool_choice": True},
        "hooks": {"files": (str(path),)},
        "tool_call_parser": tool,
        **model,
    }


@pytest.mark.checklist(126, 133)
def test_a_file_registers_a_parser_that_works_streamed_and_not(
    serve_script: Any, parsers: Path
) -> None:
    choice, request = ask_both(
        serve_script, f"so{CALL}", {"tools": [TOOL]}, **by_file(parsers, "bars")
    )
    assert choice["message"] == {
        "role": "assistant",
        "content": "so",
        "refusal": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
        ],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert request.params.skip_special_tokens is False, "as adjust_request says"
    assert sys.modules["bar_parsers"].seen == [("look", "auto", "m", "hi", False, True, 1)]


def test_a_parser_sees_the_form_that_is_asked_for(serve_script: Any, parsers: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    body = {"tools": [TOOL], "response_format": form, "reasoning_effort": "low"}
    how = by_file(parsers, "asking")
    how["hooks"]["files"] += (str(parsers.with_name("cue_parser.py")),)
    parsers.with_name("cue_parser.py").write_text(
        "from bar_parsers import Bars, ToolParserManager\n\n\n"
        "@ToolParserManager.register_module('asking')\n"
        "class Asking(Bars):\n"
        "    def extract_tool_calls(self, model_output, request):\n"
        "        form = request.response_format\n"
        "        assert form.json_schema.json_schema == {'type': 'object'}\n"
        "        assert form.model_dump(exclude_none=True)['type'] == 'json_schema'\n"
        "        assert request.reasoning_effort == 'low'\n"
        "        return super().extract_tool_calls(model_output, request)\n"
    )
    choice, request = ask_both(serve_script, "{}", body, **how)
    assert choice["message"]["content"] == "{}"
    assert request.params.structured_outputs.json == {"type": "object"}


def test_other_names_and_older_constructors_work_too(serve_script: Any, parsers: Path) -> None:
    plain, _ = ask_both(serve_script, "no call", {"tools": [TOOL]}, **by_file(parsers, "pipes"))
    assert (plain["message"]["content"], plain["finish_reason"]) == ("no call", "stop")
    older, _ = ask_both(serve_script, "any", {"tools": [TOOL]}, **by_file(parsers, "older"))
    (call,) = older["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": "{}"}


def test_calls_are_looked_for_behind_the_reasoning(serve_script: Any, parsers: Path) -> None:
    """A ``|`` that is thought is no call, though the parser goes by tokens."""
    how = by_file(parsers, "bars", reasoning_parser="hashed")
    body = {"tools": [TOOL], "chat_template_kwargs": {"x": 1}}
    choice, _ = ask_both(serve_script, f"a|b#so{CALL}", body, **how)
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == ("a|b", "so")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["look"]
    assert {"x": 1} in sys.modules["bar_parsers"].seen


@pytest.mark.checklist(12, 126)
def test_a_general_plugin_registers_a_parser_by_its_path(
    serve_script: Any, parsers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(parsers.parent)

    def register() -> None:
        from vllm.reasoning import ReasoningParserManager  # type: ignore[import-not-found]

        ReasoningParserManager.register_lazy_module("marked", "bar_parsers", "Marked")
        assert {"marked", "qwen3"} <= set(ReasoningParserManager.list_registered())

    how = {"plugins": [GeneralPlugin("mine:register", register)], "reasoning_parser": "marked"}
    choice, _ = ask_both(serve_script, "[why]because", {}, **how)
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("why", "because")


def test_a_step_ends_the_reasoning_with_its_token_and_no_other_step_does(parsers: Path) -> None:
    """Parsers with a streaming method of their own are asked at each step of a long reasoning."""
    module = importlib.import_module("vllm.utils.import_utils")
    front(lambda: module.import_plugin(str(parsers)))
    tokenizer = SimpleNamespace(token_to_id={"[": 1, "]": 2}.get)
    marked = sys.modules["bar_parsers"].Marked(tokenizer)
    steps = ([1, 5], [5]), ([1, 5, 2, 6], [2, 6]), ([1, 5, 2, 6, 7], [7])
    assert [marked.is_reasoning_end_streaming(*step) for step in steps] == [False, True, False]
    assert [marked.is_reasoning_end(ids) for ids, _ in steps] == [False, True, True]


# -- the registries ------------------------------------------------------------------------------


def managers() -> list[type[ParserManager]]:
    tool = importlib.import_module("vllm.tool_parsers").ToolParserManager
    reasoning = importlib.import_module("vllm.reasoning").ReasoningParserManager
    return [tool, reasoning]


def front(register: Callable[[], None]) -> Host:
    """A front with a general plugin, whose failure stops it."""
    return Host(["front"], PluginSettings(allow=()), [GeneralPlugin("mine:register", register)])


def outcome(host: Host) -> str:
    (report,) = [each for each in host.describe() if each.group == "object"]
    return report.state_text()


def test_the_managers_show_what_there_is_and_say_what_there_is_not() -> None:
    tool, reasoning = managers()

    def register() -> None:
        hermes = tool.get_tool_parser("hermes")  # type: ignore[attr-defined]
        assert hermes.__name__ == "HermesToolParser"
        tool.register_module("mine", module=hermes)
        assert tool.get_tool_parser("mine") is hermes  # type: ignore[attr-defined]
        assert "mine" in tool.tool_parsers  # type: ignore[attr-defined]
        assert "mine" in tool.list_registered()
        qwen3 = reasoning.get_reasoning_parser("qwen3")  # type: ignore[attr-defined]
        reasoning.register_module(module=qwen3)
        for call, error, said in (
            (lambda: tool.find("hermse"), KeyError, "hermse.*there are: .*hermes"),
            (lambda: reasoning.register_module("x", module=hermes), TypeError, "no subclass"),
            (lambda: tool.register_module(7), TypeError, "a name is a str"),
            (
                lambda: tool.register_module("mine", force=False, module=hermes),
                KeyError,
                "already, by obj",
            ),
        ):
            with pytest.raises(error, match=said):
                call()

    host = front(register)
    assert outcome(host) == "active"
    claim = host.registry("reasoning_parser").get("Qwen3ReasoningParser")
    assert claim is not None and claim.owner == "object:GeneralPlugin"


def test_a_file_of_parsers_may_be_imported_by_a_general_plugin(parsers: Path) -> None:
    tool, _ = managers()
    host = front(lambda: tool.import_tool_parser(str(parsers)))  # type: ignore[attr-defined]
    assert {"bars", "pipes", "older"} <= {c.name for c in host.registry("tool_parser").claims()}


def test_registering_is_for_plugins_alone() -> None:
    tool, _ = managers()
    with pytest.raises(PluginError, match="outside any plugin's code"):
        tool.register_lazy_module("x", "m", "C")


# -- names ---------------------------------------------------------------------------------------


def test_older_places_hold_the_same_things() -> None:
    for name, places in {
        "DeltaMessage": (
            "generate.base.protocol",
            "openai.protocol",
            "openai.engine.protocol",
            "openai.chat_completion.protocol",
        ),
        "ToolCall": ("generate.base.protocol", "openai.protocol", "openai.engine.protocol"),
        "ErrorResponse": ("serve.engine.protocol", "openai.protocol", "openai.engine.protocol"),
        "ChatCompletionRequest": ("openai.chat_completion.protocol", "openai.protocol"),
        "ToolParserManager": (
            "openai.tool_parsers",
            "openai.tool_parsers.abstract_tool_parser",
        ),
    }.items():
        found = {
            getattr(importlib.import_module(f"vllm.entrypoints.{place}"), name) for place in places
        }
        assert len(found) == 1, name
    older = importlib.import_module("vllm.entrypoints.openai.tool_parsers")
    assert managers()[0] is older.ToolParserManager


def test_a_request_is_built_as_vllms_tests_build_one() -> None:
    chat = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    responses = importlib.import_module("vllm.entrypoints.openai.responses.protocol")
    named = {"type": "function", "function": {"name": "look"}}
    request = chat.ChatCompletionRequest(messages=[], model="m", tools=[TOOL], tool_choice=named)
    assert isinstance(request, ParserRequest)
    assert isinstance(request.tool_choice, chat.ChatCompletionNamedToolChoiceParam)
    assert request.tool_choice.function.name == "look"
    assert isinstance(request.tools[0], chat.ChatCompletionToolsParam)
    assert not isinstance(request, responses.ResponsesRequest)


def test_models_of_answers_are_pydantics() -> None:
    shared = importlib.import_module("vllm.entrypoints.serve.engine.protocol")
    chat = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    completion = importlib.import_module("vllm.entrypoints.openai.completion.protocol")
    error = shared.ErrorResponse(error=shared.ErrorInfo(message="no", type="x", code=404))
    assert error.model_dump()["error"] == {"message": "no", "type": "x", "param": None, "code": 404}
    assert completion.CompletionRequest(model="m", prompt="a", unknown=1).max_tokens == 16
    usage = shared.UsageInfo(prompt_tokens=1, completion_tokens=2, total_tokens=3)
    message = chat.ChatMessage(role="assistant", content="a")
    whole = chat.ChatCompletionResponse(
        model="m",
        choices=[chat.ChatCompletionResponseChoice(index=0, message=message)],
        usage=usage,
    )
    shown = json.loads(whole.model_dump_json(exclude_none=True))
    assert shown["id"].startswith("chatcmpl-")
    assert shown["choices"][0]["message"] == {
        "role": "assistant",
        "content": "a",
        "tool_calls": [],
    }
    assert shared.ModelList(data=[shared.ModelCard(id="m")]).data[0].object == "model"
