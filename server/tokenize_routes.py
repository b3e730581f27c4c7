"""``POST /tokenize`` and ``/detokenize``: the token ids that a prompt or a chat would have, and
the text of token ids. Nothing is generated, so no plugin is asked and no record is kept."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .errors import bad_request
from .openai_request import note_unused, read_request, serving_of
from .prompts import read_chat, unused_options
from .serving import Serving
from .wire_chat import ChatRequest
from .wire_tokenize import DETOKENIZE_DECODER, TOKENIZE_DECODER, TokenizeRequest


class TokenizeEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ]


async def tokenize(request: Request) -> Response:
    serving = serving_of(request)
    reading = await read_request(request, TOKENIZE_DECODER)
    wanted = reading.decoded
    serving.model_name(wanted.model)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise bad_request(
            "expected one of 'prompt' and 'messages'", param="prompt", code="missing_field"
        )
    if wanted.prompt is not None:
        _refuse_chat_fields(wanted)
        special = wanted.add_special_tokens is not False
        tokens = await serving.prompts.count(wanted.prompt, special)
    else:
        tokens, unused = await _chat_tokens(serving, wanted)
        note_unused(reading.headers, unused)
    spelled = await serving.prompts.spell(tokens) if wanted.return_token_strs else None
    return _json(
        {
            "count": len(tokens),
            "max_model_len": serving.limits.max_model_len,
            "tokens": tokens,
            "token_strs": spelled,
        },
        reading.headers,
    )


async def _chat_tokens(serving: Serving, wanted: TokenizeRequest) -> tuple[list[int], list[str]]:
    """The tokens of the chat, and the fields that its template does not look at."""
    fields = ChatRequest(
        messages=wanted.messages,
        add_generation_prompt=wanted.add_generation_prompt,
        continue_final_message=wanted.continue_final_message,
        add_special_tokens=wanted.add_special_tokens,
        chat_template_kwargs=wanted.chat_template_kwargs,
        tools=wanted.tools,
    )
    chat = read_chat(fields, serving.limits, serving.prompts.reserved_options)
    tokens = await serving.prompts.encode_chat(chat, is_counted=True)
    unused = unused_options(fields, serving.prompts.unread(chat))
    if chat.tools and not serving.prompts.shows_tools(chat):
        unused.append("tools")
    return tokens, unused


def _refuse_chat_fields(wanted: TokenizeRequest) -> None:
    for name in (
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "tools",
    ):
        if getattr(wanted, name) is not None:
            raise bad_request(f"{name} needs messages", param=name, code="invalid_value")


async def detokenize(request: Request) -> Response:
    serving = serving_of(request)
    reading = await read_request(request, DETOKENIZE_DECODER)
    wanted = reading.decoded
    serving.model_name(wanted.model)
    if wanted.tokens is None:
        raise bad_request("the field 'tokens' is required", param="tokens", code="missing_field")
    serving.limits.check_token_ids(wanted.tokens, "tokens")
    return _json({"prompt": await serving.prompts.decode(wanted.tokens)}, reading.headers)


def _json(value: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")
