"""The request of ``POST /v1/chat/completions``, and how its replies and events are written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from hookserve.engine.text.tool_calls import ToolChoice

from .errors import bad_request, cut
from .limits import MAX_MESSAGES
from .wire_common import NOT_BUILT_COMMON, MaxTokens, NumLogprobs, SamplingFields
from .wire_json import RequestDecoder
from .wire_tools import CallId, MessageCalls, Tools, template_calls

OBJECT = "chat.completion"
CHUNK_OBJECT = "chat.completion.chunk"

_EMPTY_MESSAGE_FIELDS: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "refusal": ("",),
    "function_call": (),
    "audio": (),
}
"""Message fields that clients send back from a reply; only their empty values are accepted."""


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

ContentPart = Annotated[
    dict[str, Any],
    msgspec.Meta(
        extra_json_schema={
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
            "additionalProperties": False,
        }
    ),
]
"""``{"type": "text", "text": …}``; other types have other fields, and are refused by their type."""


def _empty(name: str) -> msgspec.Meta:
    return msgspec.Meta(extra_json_schema={"enum": [None, *_EMPTY_MESSAGE_FIELDS[name]]})


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``role`` goes to the template as it is; the template decides which roles it knows."""

    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: MessageCalls | None = None
    tool_call_id: CallId | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    annotations: Annotated[Any, _empty("annotations")] = None
    refusal: Annotated[Any, _empty("refusal")] = None
    function_call: Annotated[Any, _empty("function_call")] = None
    audio: Annotated[Any, _empty("audio")] = None


Messages = Annotated[
    list[ChatMessage], msgspec.Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_MESSAGES})
]
"""How many there are is looked at later, as is whether there is one."""


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    messages: Messages | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """For the template; what it does not look at has no effect."""
    reasoning_effort: ReasoningEffort | None = None
    """For the template as well."""
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None

    def asked_max_tokens(self) -> tuple[int | None, str]:
        """How long the answer may be, and the field that says so: the newer one, if it is given."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"


DECODER = RequestDecoder(
    ChatRequest,
    {
        **NOT_BUILT_COMMON,
        "echo": (False,),
        "functions": ([],),
        "function_call": ("none",),
        "thinking_token_budget": (),
        "modalities": (["text"],),
        "audio": (),
        "verbosity": ("medium",),
        "web_search_options": (),
        "documents": ([],),
        "chat_template": (),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
        "mm_payload": (),
        "return_mm_kwargs": (False,),
    },
)


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as the template gets them: role, text and, if given, name.

    Raises:
        ApiError: 400 with the path of the part that is no text.
    """
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: ChatMessage, path: str) -> dict[str, Any]:
    for name, empty in _EMPTY_MESSAGE_FIELDS.items():
        value = getattr(message, name)
        if value is not None and value not in empty:
            raise bad_request(
                f"{path}.{name} is not supported yet; leave it out",
                param=f"{path}.{name}",
                code="unsupported_field",
            )
    calls = message.tool_calls or []
    content = "" if calls and not message.content else message.content
    plain: dict[str, Any] = {"role": message.role}
    plain["content"] = _text_of(content, f"{path}.content")
    if message.name is not None:
        plain["name"] = message.name
    _check_call_fields(message, path)
    if calls:
        plain["tool_calls"] = template_calls(calls, f"{path}.tool_calls")
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        plain |= {"reasoning_content": reasoning, "reasoning": reasoning}
    return plain


def _check_call_fields(message: ChatMessage, path: str) -> None:
    """Raise the 400 for fields that a message of this role does not have, or must have."""
    is_tool, is_assistant = message.role == "tool", message.role == "assistant"
    given = {
        "tool_calls": bool(message.tool_calls) and not is_assistant,
        "reasoning_content": bool(message.reasoning_content) and not is_assistant,
        "reasoning": bool(message.reasoning) and not is_assistant,
        "tool_call_id": message.tool_call_id is not None and not is_tool,
    }
    for name, is_wrong in given.items():
        if is_wrong:
            owner = "tool" if name == "tool_call_id" else "assistant"
            raise bad_request(
                f"{path}.{name}: messages of the role {owner!r} alone have it "
                f"(role: {cut(message.role)!r})",
                f"{path}.{name}",
                "invalid_value",
            )
    if is_tool and message.tool_call_id is None:
        raise bad_request(
            f"{path}.tool_call_id: a message of the role 'tool' must say which call it answers",
            f"{path}.tool_call_id",
            "missing_field",
        )


def _text_of(content: str | list[ContentPart] | None, path: str) -> str:
    if isinstance(content, str):
        return content
    if not content:
        raise bad_request(
            f"{path}: expected a string or a list of text parts", param=path, code="invalid_value"
        )
    return "\n".join([_part_text(part, f"{path}[{i}]") for i, part in enumerate(content)])


def _part_text(part: ContentPart, path: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise bad_request(
            f"{path}: only parts of type 'text' are supported (given: {cut(kind)!r})",
            param=f"{path}.type",
            code="unsupported_content",
        )
    if not isinstance(text, str):
        raise bad_request(
            f"{path}.text: expected a string", param=f"{path}.text", code="invalid_value"
        )
    for name in part:
        if name not in ("type", "text"):
            raise bad_request(
                f"{path}: unknown field {cut(name)!r}",
                param=f"{path}.{cut(name)}",
                code="unknown_field",
            )
    return text


def choice(
    index: int,
    message: dict[str, Any],
    finish_reason: str | None,
    stop_reason: str | int | None,
    token_ids: list[int] | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One entry of ``choices`` in the whole reply."""
    said = {"message": message}
    return _entry(index, said, finish_reason, stop_reason, token_ids, logprobs)


def opening(index: int, content: str | None) -> dict[str, Any]:
    """The first event of a choice: who speaks, and no text yet."""
    return chunk(index, {"role": "assistant", "content": content}, None)


def chunk(
    index: int,
    delta: dict[str, Any],
    finish_reason: str | None,
    stop_reason: str | int | None = None,
    token_ids: list[int] | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One entry of ``choices`` in an event."""
    said = {"delta": delta}
    return _entry(index, said, finish_reason, stop_reason, token_ids, logprobs)


def _entry(
    index: int,
    said: dict[str, Any],
    finish_reason: str | None,
    stop_reason: str | int | None,
    token_ids: list[int] | None,
    logprobs: dict[str, Any] | None,
) -> dict[str, Any]:
    value = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish_reason}
    if stop_reason is not None:
        value["stop_reason"] = stop_reason
    if token_ids is not None:
        value["token_ids"] = token_ids
    return value
