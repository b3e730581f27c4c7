"""Tools on the wire: the fields of a request and of its messages that are about them, and how calls
and reasoning are written. What the fields say together is ``chat_tools``'.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from hookserve.engine.text.tool_calls import (
    DeltaMessage,
    DeltaToolCall,
    FunctionName,
    Tool,
    fold_calls,
)

from .errors import bad_request, cut

MAX_TOOLS = 512
MAX_CALLS = 128
"""Of one message."""

Tools = Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)]
CallId = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: FunctionName
    arguments: str | dict[str, Any] | None = None
    """JSON text of an object, as replies have it."""


class MessageCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call in a message of the assistant; ``index`` is what streamed parts have."""

    id: CallId
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


MessageCalls = Annotated[list[MessageCall], msgspec.Meta(max_length=MAX_CALLS)]


def template_calls(calls: list[MessageCall], path: str) -> list[dict[str, Any]]:
    """The calls of a message as templates get them: arguments are an object, not its text.

    Raises:
        ApiError: 400 with the path of arguments that are none.
    """
    return [
        {
            "id": call.id,
            "type": call.type,
            "function": {
                "name": call.function.name,
                "arguments": _object(call.function.arguments, f"{path}[{i}].function.arguments"),
            },
        }
        for i, call in enumerate(calls)
    ]


def _object(arguments: str | dict[str, Any] | None, path: str) -> dict[str, Any]:
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or not arguments.strip():
        return {}
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise bad_request(
            f"{path}: expected the JSON text of an object (given: {cut(arguments)!r})",
            param=path,
            code="invalid_value",
        ) from None


def no_content(is_plain: bool) -> str | None:
    """The content of a message, or of the beginning of one, in which there is none.

    Args:
        is_plain: nothing but content can come.
    """
    return "" if is_plain else None


def message(parts: DeltaMessage, is_plain: bool) -> dict[str, Any]:
    """The message of a whole reply."""
    calls = fold_calls(parts.tool_calls)
    content = parts.content or no_content(is_plain)
    value: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if parts.reasoning:
        value |= _reasoning(parts.reasoning)
    if calls:
        value["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in calls
        ]
    return value


def deltas(parts: DeltaMessage) -> list[dict[str, Any]]:
    """What a step added, one ``delta`` for each thing, in the order of a message."""
    values: list[dict[str, Any]] = []
    if parts.reasoning:
        values.append(_reasoning(parts.reasoning))
    if parts.content:
        values.append({"content": parts.content})
    for call in parts.tool_calls:
        values += [{"tool_calls": [part]} for part in _parts(call)]
    return values


def _reasoning(text: str) -> dict[str, Any]:
    """Under both names that clients know."""
    return {"reasoning_content": text, "reasoning": text}


def _parts(call: DeltaToolCall) -> list[dict[str, Any]]:
    """Id and name first and alone, then arguments."""
    function = call.function
    parts: list[dict[str, Any]] = []
    if call.id is not None:
        name = (function and function.name) or ""
        parts.append(
            {
                "index": call.index,
                "id": call.id,
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
        )
    if function is not None and function.arguments:
        parts.append({"index": call.index, "function": {"arguments": function.arguments}})
    return parts
