"""The requests of ``POST /tokenize`` and ``POST /detokenize``, with vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .prompt_encoder import MAX_LIST_TOKENS
from .wire_chat import Messages
from .wire_json import RequestDecoder
from .wire_tools import Tools


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One of ``prompt`` and ``messages``; the fields behind those are the chat's."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Without it as the routes do that generate: for a prompt, not for a chat."""
    return_token_strs: bool | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: Annotated[list[int], msgspec.Meta(max_length=MAX_LIST_TOKENS)] | None = None


TOKENIZE_DECODER = RequestDecoder(
    TokenizeRequest,
    {
        "chat_template": (),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
        "return_token_offsets": (False,),
    },
)
DETOKENIZE_DECODER = RequestDecoder(DetokenizeRequest, {})
