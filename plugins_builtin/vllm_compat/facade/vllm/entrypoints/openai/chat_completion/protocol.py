"""Requests and answers of ``/v1/chat/completions``. The answers are pydantic models, which need
``hookserve[vllm-compat]``; what parsers are given is not.
"""

from __future__ import annotations

from hookserve.engine.text.tool_calls import DeltaMessage, FunctionDefinition
from hookserve.engine.text.tool_calls import NamedFunction as ChatCompletionNamedFunction
from hookserve.engine.text.tool_calls import (
    NamedToolChoice as ChatCompletionNamedToolChoiceParam,
)
from hookserve.engine.text.tool_calls import ParserRequest as ChatCompletionRequest
from hookserve.engine.text.tool_calls import Tool as ChatCompletionToolsParam
from hookserve.plugins_builtin.vllm_compat.lazy import names_from

_HOMES = dict.fromkeys(
    ("ChatCompletionResponse", "ChatCompletionResponseChoice", "ChatMessage"),
    "hookserve.plugins_builtin.vllm_compat.openai_models",
)

__all__ = [
    *_HOMES,
    "ChatCompletionNamedFunction",
    "ChatCompletionNamedToolChoiceParam",
    "ChatCompletionRequest",
    "ChatCompletionToolsParam",
    "DeltaMessage",
    "FunctionDefinition",
]

_OWN = "shape: for the answers of a plugin's own routes; the server writes its own by itself"
__surface__ = {
    "ChatCompletionNamedFunction": "live: of a ChatCompletionNamedToolChoiceParam",
    "ChatCompletionNamedToolChoiceParam": "live: a request's tool_choice that names a function",
    "ChatCompletionRequest": "live: what parsers are given: messages, tools, tool_choice, "
    "parallel_tool_calls, include_reasoning, reasoning_effort, response_format, "
    "chat_template_kwargs, model, stream, skip_special_tokens and structured_outputs, of which "
    "adjust_request may set the last two; "
    "other fields of a request are not there. It is no pydantic model, so not the body of a route, "
    "and to_sampling_params raises NotServedError",
    "ChatCompletionResponse": _OWN,
    "ChatCompletionResponseChoice": _OWN,
    "ChatCompletionToolsParam": "live: a tool of a request",
    "ChatMessage": _OWN,
    "DeltaMessage": "live: what a parser's streaming method answers; older parsers import it here",
    "FunctionDefinition": "live: of a tool of a request",
}

__getattr__ = names_from(__name__, _HOMES)
