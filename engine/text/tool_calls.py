"""Tools and calls of them as parsers see them; names and fields are the ecosystem's (vLLM's).

Plain data. Who finds calls in a text is ``tool_parser``'s, what they look like in JSON the
server's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from hookserve.engine.not_served import not_served
from hookserve.engine.structured_outputs import StructuredOutputsParams

from .plain_data import PlainData

FunctionName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.-]+\Z")
]


class FunctionDefinition(
    PlainData, msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A function that the model may call; ``parameters`` is a JSON schema, ``None``: none."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(PlainData, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionDefinition

    def as_dict(self) -> dict[str, Any]:
        """As templates get it: what was given and no more, in the order of the fields."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class NamedFunction(PlainData, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: FunctionName


class NamedToolChoice(PlainData, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choice of one function, which must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


def make_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@dataclass
class FunctionCall(PlainData):
    name: str
    arguments: str
    """JSON text of an object."""


@dataclass
class ToolCall(PlainData):
    function: FunctionCall
    """A dict with its fields will do, as in the parts of calls below."""
    id: str = field(default_factory=make_call_id)
    type: str = "function"

    def __post_init__(self) -> None:
        given: Any = self.function
        if isinstance(given, dict):
            self.function = FunctionCall(**given)


@dataclass
class ExtractedToolCallInformation(PlainData):
    """What a whole text holds. ``content`` is what is no call; ``None``: nothing."""

    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


@dataclass
class DeltaFunctionCall(PlainData):
    name: str | None = None
    arguments: str | None = None


@dataclass
class DeltaToolCall(PlainData):
    """A part of one call: ``id``, ``type`` and the name in its first part alone."""

    index: int
    id: str | None = None
    type: str | None = None
    function: DeltaFunctionCall | None = None

    def __post_init__(self) -> None:
        given: Any = self.function
        if isinstance(given, dict):
            self.function = DeltaFunctionCall(**given)

    @classmethod
    def begin(cls, index: int, call_id: str, name: str, arguments: str) -> DeltaToolCall:
        return cls(index, call_id, "function", DeltaFunctionCall(name, arguments))

    @classmethod
    def more(cls, index: int, arguments: str) -> DeltaToolCall:
        return cls(index, function=DeltaFunctionCall(arguments=arguments))


@dataclass(init=False)
class DeltaMessage(PlainData):
    """What a step added to a message.

    Args:
        reasoning_content: the older name of ``reasoning``.
        role: the writer's, of the beginning of a message; the server says it by itself.
    """

    content: str | None
    reasoning: str | None
    tool_calls: list[DeltaToolCall]

    def __init__(
        self,
        content: str | None = None,
        reasoning: str | None = None,
        tool_calls: Iterable[DeltaToolCall | dict[str, Any]] | None = None,
        *,
        role: str | None = None,
        reasoning_content: str | None = None,
    ) -> None:
        del role
        self.content = content
        self.reasoning = reasoning if reasoning is not None else reasoning_content
        self.tool_calls = [
            DeltaToolCall(**each) if isinstance(each, dict) else each for each in tool_calls or ()
        ]

    @property
    def reasoning_content(self) -> str | None:
        """The older name of ``reasoning``."""
        return self.reasoning

    @reasoning_content.setter
    def reasoning_content(self, text: str | None) -> None:
        self.reasoning = text

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)

    def texts(self) -> Iterator[str]:
        """Every text in it."""
        for call in self.tool_calls:
            if call.function is not None:
                yield from filter(None, (call.id, call.function.name, call.function.arguments))
        yield from filter(None, (self.content, self.reasoning))

    def add(self, other: DeltaMessage) -> None:
        """Append what a later step added."""
        if other.content:
            self.content = (self.content or "") + other.content
        if other.reasoning:
            self.reasoning = (self.reasoning or "") + other.reasoning
        self.tool_calls += other.tool_calls


def fold_calls(deltas: Iterable[DeltaToolCall]) -> list[ToolCall]:
    """The calls that parts make, in the order of their indices."""
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        call = calls.setdefault(delta.index, ToolCall(FunctionCall("", ""), ""))
        call.id = delta.id or call.id
        if delta.function is not None:
            call.function.name += delta.function.name or ""
            call.function.arguments += delta.function.arguments or ""
    return [calls[index] for index in sorted(calls)]


@dataclass
class ParserRequest(PlainData):
    """A chat request as parsers see it. ``adjust_request`` may change ``skip_special_tokens`` and
    ``structured_outputs``; to the rest a change does nothing.

    Raises:
        msgspec.ValidationError: a ``ValueError``: tools, or a choice, that are none.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    """As the template gets them."""
    tools: list[Tool] = field(default_factory=list)
    """Dicts will do, and ``None``."""
    tool_choice: ToolChoice | None = None
    """Of a function by its name too, as the object or as a dict. ``None``: ``"auto"`` where there
    are tools, else ``"none"``."""
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    response_format: Any = None
    """As the request has it: an object with ``type`` and ``json_schema``."""
    reasoning_effort: str | None = None
    model: str | None = None
    """As the request names it."""
    stream: bool = False

    def __post_init__(self) -> None:
        tools: Any = self.tools or ()
        self.tools = [
            msgspec.convert(each, Tool) if isinstance(each, dict) else each for each in tools
        ]
        choice: Any = self.tool_choice
        if choice is None:
            self.tool_choice = "auto" if self.tools else "none"
        elif not isinstance(choice, NamedToolChoice):
            given = {"type": "function", **choice} if isinstance(choice, dict) else choice
            self.tool_choice = msgspec.convert(given, ToolChoice)

    to_sampling_params = not_served(
        "to_sampling_params",
        "a chat request as parsers see it has no sampling parameters but skip_special_tokens and "
        "structured_outputs, which adjust_request may set",
    )

    def parameters_of(self, name: str) -> dict[str, Any]:
        """The declared schema of a function's arguments; empty where there is none."""
        for tool in self.tools:
            if tool.function.name == name:
                return tool.function.parameters or {}
        return {}
