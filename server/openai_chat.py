"""``POST /v1/chat/completions``: messages in, ``n`` messages of the assistant out."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hookserve.engine.request_limits import ContextLimits

from . import wire_chat as wire
from .api_call import Checked, open_call
from .choice import fold_choices
from .errors import bad_request
from .openai_reply import Reply
from .prompt_encoder import Chat
from .prompts import read_chat, unused_options
from .sampling import check_choices, check_server_side, check_stream_options, sampling_params
from .serving import Serving
from .wire_chat import ChatRequest

PATH = "/v1/chat/completions"


class ChatCompletionsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self.create_chat_completion, methods=["POST"])]

    async def create_chat_completion(self, request: Request) -> Response:
        async with open_call(request, PATH, wire.DECODER, _check) as call:
            serving, wanted, checked = call.serving, call.wanted, call.checked
            limits = serving.limits
            prompt = await self.render_chat_request(serving, checked.prompt)
            call.note_unused(unused_options(wanted, serving.prompts.unread(checked.prompt.options)))
            limits.check_prompt_logprobs(wanted.prompt_logprobs, len(prompt))
            params = sampling_params(
                wanted,
                serving.defaults,
                limits,
                max_tokens=[_max_tokens(limits, len(prompt), wanted)],
                bad_words_token_ids=await serving.prompts.spell_bad_words(wanted.bad_words),
                best_of=None,
                logprobs=checked.num_logprobs,
            )
            await call.check_params(params)
            return await ChatReply(call, [prompt], params).response(request)

    async def render_chat_request(self, serving: Serving, chat: Chat) -> list[int]:
        """The rendered chat as token ids.

        Raises:
            ApiError: 400 for messages of which nothing is left.
        """
        prompt = await serving.prompts.encode_chat(chat)
        if not prompt:
            raise bad_request(
                "the chat template made nothing of these messages",
                param="messages",
                code="empty_prompt",
            )
        return prompt


def _check(serving: Serving, wanted: ChatRequest) -> Checked:
    model = serving.model_name(wanted.model)
    options = check_stream_options(wanted)
    num_logprobs = _num_logprobs(wanted)
    num_top = serving.limits.num_logprobs(num_logprobs, "top_logprobs")
    check_server_side(wanted, serving.engine_config.scheduler.policy)
    check_choices(wanted, 1, None)
    chat = read_chat(wanted, serving.limits, serving.prompts.reserved_options)
    return Checked(model, chat, options, num_logprobs, num_top)


def _max_tokens(limits: ContextLimits, num_prompt: int, wanted: ChatRequest) -> int:
    asked, path = wanted.max_completion_tokens, "max_completion_tokens"
    if asked is None:
        asked, path = wanted.max_tokens, "max_tokens"
    return limits.max_tokens(num_prompt, asked, None, path=path, prompt_path="messages")


def _num_logprobs(wanted: ChatRequest) -> int | None:
    """How many of the likeliest tokens are wanted at each position; ``None``: no logprobs.

    Raises:
        ApiError: 400 for a number of them without ``logprobs``.
    """
    if wanted.logprobs:
        return wanted.top_logprobs or 0
    if wanted.top_logprobs:
        raise bad_request(
            "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value"
        )
    return None


class ChatReply(Reply):
    """``n`` messages for one chat."""

    async def events(self) -> AsyncIterator[bytes]:
        generation = self.generation
        events = self.event_writer("chatcmpl", wire.CHUNK_OBJECT)
        unsent_ids = generation.prompts[0] if self.with_ids else None
        silent = set(range(generation.n))
        async for index, delta in generation.deltas():
            if index in silent:
                silent.remove(index)
                yield events.choice(wire.opening(index), prompt_token_ids=unsent_ids)
                unsent_ids = None
            token_ids = delta.token_ids if self.with_ids and delta.token_ids else None
            logprobs = self.writer.chat(delta.logprobs) if delta.token_ids else None
            with_tokens = token_ids is not None or logprobs is not None
            if delta.text or (with_tokens and delta.finish_reason is None):
                value = wire.chunk(index, delta.text, None, None, token_ids, logprobs)
                yield events.choice(value)
                token_ids = logprobs = None
            if delta.finish_reason is not None:
                reasons = delta.finish_reason, delta.stop_reason
                yield events.choice(wire.chunk(index, "", *reasons, token_ids, logprobs))
        if self.options.include_usage:
            yield events.usage()

    async def collect(self) -> bytes:
        generation = self.generation
        choices = await fold_choices(generation)
        reply = {
            **self.head("chatcmpl", wire.OBJECT),
            "choices": [
                wire.choice(
                    index,
                    choice.text,
                    choice.finish_reason,
                    choice.stop_reason,
                    choice.token_ids if self.with_ids else None,
                    self.writer.chat(choice.logprobs),
                )
                for index, choice in enumerate(choices)
            ],
            "usage": self.usage(),
        }
        about_prompt = self.writer.prompt(generation.prompt_logprobs[0])
        if about_prompt is not None:
            reply["prompt_logprobs"] = about_prompt
        if self.with_ids:
            reply["prompt_token_ids"] = generation.prompts[0]
        return msgspec.json.encode(reply)
