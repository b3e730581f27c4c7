"""The request of ``POST /v1/chat/completions``, and how its replies and events are written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from .errors import bad_request, cut
from .wire_common import NOT_BUILT_COMMON, MaxTokens, NumLogprobs, SamplingFields
from .wire_json import RequestDecoder

OBJECT = "chat.completion"
CHUNK_OBJECT = "chat.completion.chunk"

_EMPTY_MESSAGE_FIELDS: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "annotations": ([],),
    "refusal": ("",),
    "reasoning": ("",),
    "reasoning_content": ("",),
    "function_call": (),
    "audio": (),
    "tool_call_id": (),
}
"""Message fields that clients send back from a reply; only their empty values are accepted."""


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

ContentPart = dict[str, Any]
"""``{"type": "text", "text": …}``; other types have other fields, and are refused by their type."""


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``role`` goes to the template as it is; the template decides which roles it knows."""

    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Any = None
    annotations: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    function_call: Any = None
    audio: Any = None
    tool_call_id: Any = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    messages: list[ChatMessage] | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """For the template; what it does not look at has no effect."""
    reasoning_effort: ReasoningEffort | None = None
    """For the template as well."""


DECODER = RequestDecoder(
    ChatRequest,
    {
        **NOT_BUILT_COMMON,
        "echo": (False,),
        "tools": ([],),
        "tool_choice": ("none",),
        "parallel_tool_calls": (True,),
        "functions": ([],),
        "function_call": ("none",),
        "include_reasoning": (True,),
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
    plain = {"role": message.role, "content": _text_of(message.content, f"{path}.content")}
    if message.name is not None:
        plain["name"] = message.name
    return plain


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
    text: str,
    finish_reason: str | None,
    stop_reason: str | int | None,
    token_ids: list[int] | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One entry of ``choices`` in the whole reply."""
    value: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
    if stop_reason is not None:
        value["stop_reason"] = stop_reason
    if token_ids is not None:
        value["token_ids"] = token_ids
    return value


def opening(index: int) -> dict[str, Any]:
    """The first event of a choice: who speaks, and no text yet."""
    return {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }


def chunk(
    index: int,
    text: str,
    finish_reason: str | None,
    stop_reason: str | int | None = None,
    token_ids: list[int] | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One entry of ``choices`` in a later event."""
    value: dict[str, Any] = {
        "index": index,
        "delta": {"content": text} if text else {},
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
    if stop_reason is not None:
        value["stop_reason"] = stop_reason
    if token_ids is not None:
        value["token_ids"] = token_ids
    return value
