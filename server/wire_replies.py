"""What replies and events look like: the types from which ``/openapi.json`` describes them.

The routes write plain objects, which are quicker to make; a test holds real ones of every kind
against these types. ``UNSET``: the field may be left out.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from hookserve.hookspecs.report import OpReport, PluginReport

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
"""The last is a plugin's."""


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    """Has no fields but its own."""


# -- failures ---------------------------------------------------------------------


class ErrorBody(Shape):
    """``param`` is the path of the field at fault, ``code`` a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Shape):
    """The body of every failure."""

    error: ErrorBody


# -- what both generation routes share --------------------------------------------------------


class PromptTokensDetails(Shape):
    cached_tokens: int


class CompletionTokensDetails(Shape):
    reasoning_tokens: int


class Usage(Shape):
    """Each prompt is counted once, cached tokens are among those of the prompt."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class PromptLogprob(Shape):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By token id; ``null`` for the first token."""


# -- /v1/completions ---------------------------------------------------------------------


class CompletionLogprobs(Shape):
    """Lists with an entry for each token; an echoed prompt's first one is ``null``."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Shape):
    """A choice, or in a stream a part of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | UnsetType = UNSET
    """The text or the token id that ended it, where the request named it."""
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Shape):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionEvent(Shape):
    """One event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


# -- /v1/chat/completions ---------------------------------------------------------------------


class TokenLogprob(Shape):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Shape):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Shape):
    content: list[ChatTokenLogprob]
    refusal: None


class ReplyFunction(Shape):
    name: str
    arguments: str
    """The JSON text of an object."""


class ReplyToolCall(Shape):
    id: str
    type: Literal["function"]
    function: ReplyFunction


class ReplyMessage(Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same under its other name."""
    tool_calls: list[ReplyToolCall] | UnsetType = UNSET


class ChatChoice(Shape):
    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionPart(Shape):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallPart(Shape):
    """``id``, ``type`` and the name come first, the arguments in parts behind them."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionPart | UnsetType = UNSET


class ChatDelta(Shape):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


class ChatPart(Shape):
    """A part of a choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatEvent(Shape):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatPart]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


# -- the other routes ---------------------------------------------------------------------


class ModelCard(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    limits: dict[str, int]
    defaults: dict[str, float | None]


class ModelList(Shape):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(Shape):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Shape):
    prompt: str


class Status(Shape):
    status: Literal["alive", "ready"]


class Version(Shape):
    version: str


class PluginProcesses(Shape):
    """Each by the name of its process."""

    object: Literal["list"]
    processes: dict[str, list[PluginReport]]
    roles: dict[str, list[str]]
    pids: dict[str, int]
    ops: dict[str, list[OpReport]]
    unanswered: dict[str, str]
