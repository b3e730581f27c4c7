"""The objects of a chat, built and read as the ecosystem's parsers do with the models of theirs."""

from __future__ import annotations

import json

import msgspec
import pytest

from hookserve.engine.text.tool_calls import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    NamedToolChoice,
    ParserRequest,
    Tool,
    ToolCall,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": None}}}


def test_parts_are_built_of_dicts_and_dumped_again() -> None:
    function = DeltaFunctionCall(name="f").model_dump(exclude_none=True)
    assert function == {"name": "f"}
    part = DeltaToolCall(index=0, id="call_1", type="function", function=function)
    assert part.function == DeltaFunctionCall("f")
    message = DeltaMessage(role="assistant", reasoning_content="so", tool_calls=[part])
    assert (message.reasoning, message.reasoning_content) == ("so", "so")
    assert json.loads(message.model_dump_json(exclude_none=True)) == {
        "reasoning": "so",
        "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}}],
    }
    message.reasoning_content = "no"
    assert message.model_dump()["reasoning"] == "no"
    assert DeltaMessage(tool_calls=[{"index": 1}]).tool_calls == [DeltaToolCall(1)]
    assert DeltaMessage("a").model_dump(exclude_unset=True) == {"content": "a"}
    assert DeltaMessage("a").model_dump(include={"content", "reasoning"}) == {
        "content": "a",
        "reasoning": None,
    }


def test_calls_of_a_whole_text_are_data_too() -> None:
    call = ToolCall(type="function", function={"name": "f", "arguments": "{}"})
    assert call.function == FunctionCall("f", "{}")
    found = ExtractedToolCallInformation(tools_called=True, tool_calls=[call], content=None)
    assert found.model_dump(exclude={"content"}) == {
        "tools_called": True,
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    }
    assert call.model_copy(update={"id": "x"}).id == "x"
    assert call.model_copy().function is call.function
    copied = call.model_copy(deep=True)
    assert copied == call and copied.function is not call.function
    assert ToolCall.model_validate({"id": "y", "function": call.function}).id == "y"
    assert Tool.model_validate(TOOL).function.name == "f"
    with pytest.raises(msgspec.ValidationError, match="name"):
        Tool.model_validate({"type": "function", "function": {}})


def test_a_request_is_made_of_plain_json() -> None:
    request = ParserRequest(messages=[], model="m", tools=[TOOL])  # type: ignore[list-item]
    assert (request.tools[0].function.name, request.tool_choice) == ("f", "auto")
    assert request.tools[0].model_dump(exclude_none=True) == TOOL, "a schema stays as it is"
    named = {"type": "function", "function": {"name": "f"}}
    request = ParserRequest(tools=[TOOL], tool_choice=named)  # type: ignore[list-item, arg-type]
    assert isinstance(request.tool_choice, NamedToolChoice)
    assert request.tool_choice.function.name == "f"
    assert (ParserRequest(tools=None).tools, ParserRequest().tool_choice) == ([], "none")  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError, match="function"):
        ParserRequest(tools=[{"type": "function"}])  # type: ignore[list-item]
    for choice in ({"type": "function"}, {"function": "f"}, "must"):
        with pytest.raises(msgspec.ValidationError):
            ParserRequest(tools=[TOOL], tool_choice=choice)  # type: ignore[list-item, arg-type]
    untyped = {"function": {"name": "f"}}
    assert ParserRequest(tools=[TOOL], tool_choice=untyped) == ParserRequest(  # type: ignore[list-item, arg-type]
        tools=request.tools, tool_choice=request.tool_choice
    )
    assert isinstance(request.tools[0], Tool)
