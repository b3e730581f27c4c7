"""Calls that a request asks for by itself (``tool_choice``: ``required``, or a function's name):
the form that the model's text is held to, and how the calls are read from it.

The form is JSON, whatever the model's own format: for one named function its arguments alone, else
a list of ``{"name": …, "parameters": …}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from hookserve.engine.errors import InvalidRequestError
from hookserve.engine.json_schemas import map_schemas
from hookserve.engine.structured_outputs import MAX_DEPTH, StructuredOutputsParams, is_deeper

from .json_end import JsonEnd
from .tool_calls import DeltaMessage, DeltaToolCall, Tool, make_call_id

MAX_CALLS = 16
"""Calls of one reply, so that a model which never ends a list still ends."""

_BETWEEN = re.compile(r"[\s,\[\]}]*")
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""A function without parameters takes none."""
_ITEM = re.compile(r'\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*')


def form_of(
    tools: Sequence[Tool], named: str | None, parallel: bool = True
) -> StructuredOutputsParams:
    """What holds the text to the declared schemas.

    Args:
        named: the one function that must be called; ``None``: any of them.
        parallel: whether there may be several calls.

    Raises:
        InvalidRequestError: parameters that are too deep.
    """
    wanted = [tool for tool in tools if named in (None, tool.function.name)]
    schemas = [tool.function.parameters or _NOTHING for tool in wanted]
    for tool, schema in zip(wanted, schemas, strict=True):
        if is_deeper(schema, MAX_DEPTH):
            raise InvalidRequestError(
                f"tools: the parameters of {tool.function.name} have more than {MAX_DEPTH} levels",
                param="tools",
            )
    is_strict = all(tool.function.strict for tool in wanted)
    if named is not None:
        schema = schemas[0]
    else:
        items = [_item(tool.function.name, f"#/$defs/{at}") for at, tool in enumerate(wanted)]
        schema = {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CALLS if parallel else 1,
            "items": items[0] if len(items) == 1 else {"anyOf": items},
            "$defs": {
                str(at): _moved(schema, f"#/$defs/{at}") for at, schema in enumerate(schemas)
            },
        }
    # A model that may write blanks between the tokens of JSON may do so without end.
    return StructuredOutputsParams(json=schema, disable_any_whitespace=True, lenient=not is_strict)


def _item(name: str, reference: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": {"$ref": reference}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """A copy of a whole schema whose references to parts of itself still work when it stands at
    ``place`` of another."""
    own = schema.get("$id")
    prefixes = ("#", f"{own.removesuffix('#')}#") if isinstance(own, str) else ("#",)

    def move(part: Any) -> Any:
        if not isinstance(part, dict) or (part is not schema and "$id" in part):
            return part  # references within a part that has its own id are to that part
        moved = map_schemas(part, move)
        reference = part.get("$ref")
        if isinstance(reference, str) and (reference == own or reference.startswith(prefixes)):
            moved["$ref"] = f"{place}{reference.partition('#')[2]}"
        return moved

    moved: dict[str, Any] = move(schema)
    moved.pop("$id", None)  # the whole has none, and no reference says it any more
    return moved


class NamedCall:
    """The text is the arguments of one call; they are given out as they come."""

    def __init__(self, name: str, make_id: Callable[[], str] = make_call_id) -> None:
        self._name = name
        self._make_id = make_id
        self._is_begun = False

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        if not text:
            return DeltaMessage()
        if self._is_begun:
            return DeltaMessage(tool_calls=[DeltaToolCall.more(0, text)])
        self._is_begun = True
        return DeltaMessage(tool_calls=[DeltaToolCall.begin(0, self._make_id(), self._name, text)])

    def end(self) -> DeltaMessage:
        return DeltaMessage()


class ListedCalls:
    """The text is a list of calls; of each the name is given out first, then the arguments as they
    come. A further call whose name was cut off is left out; other text is content."""

    def __init__(self, make_id: Callable[[], str] = make_call_id) -> None:
        self._make_id = make_id
        self._held = ""
        self._num_calls = 0
        self._arguments: JsonEnd | None = None
        """Of the call that is open."""

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        self._held += text
        message = DeltaMessage()
        while self._held and self._step(message):
            pass
        return message

    def end(self) -> DeltaMessage:
        rest, self._held = self._held, ""
        if self._num_calls:
            behind = _BETWEEN.sub("", rest, count=1)
            rest = "" if behind.startswith("{") else behind
        return DeltaMessage(rest)

    def _step(self, message: DeltaMessage) -> bool:
        """Take what comes next; whether that was possible."""
        if self._arguments is not None:
            self._take_arguments(self._arguments, message)
            return True
        start = _BETWEEN.match(self._held)
        assert start is not None
        item = _ITEM.match(self._held, start.end())
        if item is None or item.end() == len(self._held):
            return False
        try:
            name = json.loads(item["name"])
        except ValueError:
            return False
        self._take(item.end())
        self._arguments = JsonEnd()
        call = DeltaToolCall.begin(self._num_calls, self._make_id(), name, "")
        message.tool_calls.append(call)
        self._num_calls += 1
        return True

    def _take_arguments(self, value: JsonEnd, message: DeltaMessage) -> None:
        end = value.push(self._held)
        if end is not None:
            self._arguments = None
        text = self._take(len(self._held) if end is None else end)
        message.tool_calls.append(DeltaToolCall.more(self._num_calls - 1, text))

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken
