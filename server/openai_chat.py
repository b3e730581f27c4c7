"""``POST /v1/chat/completions``: messages in, one message of the assistant out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from . import wire_chat as wire
from .errors import bad_request
from .generation import Generation
from .openai_request import read_request, reply_id, serving_of
from .sampling import check_stream_options, sampling_params
from .streaming import EventStream, until_gone
from .wire_chat import ChatEvents, ChatRequest
from .wire_common import usage

PATH = "/v1/chat/completions"


class ChatCompletionsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, create_chat_completion, methods=["POST"])]


async def create_chat_completion(request: Request) -> Response:
    serving = serving_of(request)
    wanted, headers = await read_request(request, wire.DECODER)
    model = serving.model_name(wanted.model)
    with_usage = check_stream_options(wanted)
    if not wanted.messages:
        raise bad_request(
            "the field 'messages' must hold at least one message",
            param="messages",
            code="missing_field",
        )
    prompt = await serving.encode_chat(wire.template_messages(wanted.messages))
    if not prompt:
        raise bad_request(
            "the chat template made nothing of these messages",
            param="messages",
            code="empty_prompt",
        )
    limits = serving.limits
    asked = wanted.max_completion_tokens or wanted.max_tokens
    max_tokens = limits.max_tokens(len(prompt), asked, None)
    generation = Generation(
        serving,
        request_id=request.state.request_id,
        route=PATH,
        model=model,
        prompts=[prompt],
        params=[sampling_params(wanted, serving.defaults, limits, max_tokens)],
    )
    if wanted.stream:
        return EventStream(generation, _events(generation, wanted, with_usage), headers)
    body = await until_gone(request.receive, generation, _collect(generation, wanted))
    return Response(body, headers=headers, media_type="application/json")


async def _events(
    generation: Generation, wanted: ChatRequest, with_usage: bool
) -> AsyncIterator[bytes]:
    events = ChatEvents(reply_id("chatcmpl"), int(time.time()), generation.model, with_usage)
    with_ids = bool(wanted.return_token_ids)
    is_first = True
    async for index, delta in generation.deltas():
        if is_first:
            is_first = False
            yield events.role(index, generation.prompts[index] if with_ids else None)
        token_ids = delta.token_ids if with_ids and delta.token_ids else None
        if delta.text or (token_ids and delta.finish_reason is None):
            yield events.delta(index, delta.text, None, None, token_ids)
            token_ids = None
        if delta.finish_reason is not None:
            yield events.delta(index, "", delta.finish_reason, delta.stop_reason, token_ids)
    if with_usage:
        yield events.usage(_usage(generation))


async def _collect(generation: Generation, wanted: ChatRequest) -> bytes:
    """The fold of the stream: the same deltas, joined."""
    text: list[str] = []
    token_ids: list[int] = []
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    async for _, delta in generation.deltas():
        text.append(delta.text)
        token_ids.extend(delta.token_ids)
        finish_reason, stop_reason = delta.finish_reason, delta.stop_reason
    with_ids = bool(wanted.return_token_ids)
    reply = {
        "id": reply_id("chatcmpl"),
        "object": wire.OBJECT,
        "created": int(time.time()),
        "model": generation.model,
        "choices": [
            wire.choice(
                0, "".join(text), finish_reason, stop_reason, token_ids if with_ids else None
            )
        ],
        "usage": _usage(generation),
    }
    if with_ids:
        reply["prompt_token_ids"] = generation.prompts[0]
    return msgspec.json.encode(reply)


def _usage(generation: Generation) -> dict[str, object]:
    return usage(
        generation.num_prompt_tokens,
        generation.num_completion_tokens,
        generation.num_cached_tokens,
    )
