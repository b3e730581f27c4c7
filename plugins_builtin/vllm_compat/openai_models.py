"""The ecosystem's models of requests and answers, for routes of plugins: pydantic, which comes with
``hookserve[vllm-compat]``. The server's own routes are ``server.wire_*``.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Literal

from hookserve.engine.sampling_params import SamplingParams

from .request_params import params_of

try:
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as error:
    raise ImportError(
        "models of requests and answers are pydantic's, which is not installed: "
        "pip install 'hookserve[vllm-compat]'"
    ) from error


class OpenAIBaseModel(BaseModel):
    """Further fields are kept."""

    model_config = ConfigDict(extra="allow")


class ErrorInfo(OpenAIBaseModel):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(OpenAIBaseModel):
    error: ErrorInfo


class ModelCard(OpenAIBaseModel):
    id: str
    object: str = "model"
    created: int = Field(default_factory=lambda: int(time.time()))
    owned_by: str = "hookserve"
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(OpenAIBaseModel):
    object: str = "list"
    data: list[ModelCard] = Field(default_factory=list)


class PromptTokenUsageInfo(OpenAIBaseModel):
    cached_tokens: int | None = None


class UsageInfo(OpenAIBaseModel):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None


class CompletionRequest(OpenAIBaseModel):
    """With the defaults of ``/v1/completions``; what else a request has is kept too."""

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    max_tokens: int | None = 16
    n: int = 1
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None

    def to_sampling_params(
        self, max_tokens: int, default_sampling_params: dict[str, Any] | None = None
    ) -> SamplingParams:
        """How it is sampled, with this many new tokens. Raises as ``request_params.params_of``."""
        return params_of(self.model_dump(), max_tokens, default_sampling_params or {})


class CompletionResponseChoice(OpenAIBaseModel):
    index: int
    text: str
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class CompletionResponse(OpenAIBaseModel):
    id: str = Field(default_factory=lambda: f"cmpl-{secrets.token_hex(16)}")
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[CompletionResponseChoice]
    usage: UsageInfo


class ChatMessage(OpenAIBaseModel):
    role: str
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChatCompletionResponseChoice(OpenAIBaseModel):
    index: int
    message: ChatMessage
    logprobs: Any = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None


class ChatCompletionResponse(OpenAIBaseModel):
    id: str = Field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(16)}")
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: UsageInfo
