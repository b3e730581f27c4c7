"""``POST /v1/chat/completions``: messages in, ``n`` messages of the assistant out."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hookserve.engine.reply_parsers import ReplyForm
from hookserve.engine.request_limits import ContextLimits
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.text.reply_splitter import ReplySplitter
from hookserve.engine.text.tool_calls import DeltaMessage
from hookserve.hookspecs import PluginError

from . import wire_chat as wire
from .api_call import ApiCall, Checked, open_call
from .chat_tools import parser_request, tool_choice
from .choice import Choice, fold_choices
from .errors import bad_request
from .openai_reply import Reply
from .prompt_encoder import Chat
from .prompts import read_chat, unused_options
from .sampling import check_choices, check_server_side, check_stream_options, sampling_params
from .serving import Serving
from .wire_chat import ChatRequest
from .wire_tools import deltas, message, no_content

PATH = "/v1/chat/completions"


class ChatCompletionsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self.create_chat_completion, methods=["POST"])]

    async def create_chat_completion(self, request: Request) -> Response:
        async with open_call(request, PATH, wire.DECODER, _check) as call:
            serving, wanted, checked = call.serving, call.wanted, call.checked
            limits = serving.limits
            prompt = await self.render_chat_request(serving, checked.prompt)
            if not serving.parsers.reads_options:
                unread = serving.prompts.unread(checked.prompt)
                call.note_unused(unused_options(wanted, unread))
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
            form = await self.open_form(call, prompt, params[0])
            params = [form.adjusted(each) for each in params]
            await call.check_params(params)
            return await ChatReply(call, [prompt], params, form).response(request)

    async def open_form(
        self, call: ApiCall, prompt: list[int], params: SamplingParams
    ) -> ReplyForm:
        """How the replies are taken apart, as the parsers want it for this request.

        Raises:
            ApiError: a parser failed.
            InvalidRequestError: two forms are asked for.
        """
        serving, wanted, chat = call.serving, call.wanted, call.checked.prompt
        choice = tool_choice(wanted, may_choose=serving.parsers.may_choose)
        if wanted.tools and choice in ("none", "auto") and not serving.prompts.shows_tools(chat):
            call.note_unused(["tools"])
        try:
            request = parser_request(wanted, chat, choice, params)
            return await serving.parsers.open(request, prompt)
        except PluginError as error:
            raise call.failure(error, "a parser") from None

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
    choice = tool_choice(wanted, may_choose=serving.parsers.may_choose)
    if choice == "none" and serving.parsers.hides_tools:
        chat = dataclasses.replace(chat, tools=None)
    return Checked(model, chat, options, num_logprobs, num_top)


def _max_tokens(limits: ContextLimits, num_prompt: int, wanted: ChatRequest) -> int:
    asked, path = wanted.asked_max_tokens()
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
    """``n`` messages for one chat.

    Args:
        form: how their text is taken apart.
    """

    def __init__(
        self,
        call: ApiCall,
        prompts: list[list[int]],
        params: list[SamplingParams],
        form: ReplyForm,
    ) -> None:
        super().__init__(call, prompts, params)
        self._form = form
        self._splitters: list[ReplySplitter] = []

    async def _open(self, *, is_whole: bool) -> None:
        generation, parsers = self.generation, self._call.serving.parsers
        try:
            self._splitters = await parsers.splitters(self._form, generation.n, is_whole=is_whole)
        except PluginError as error:
            raise self._call.failure(error, "a parser") from None

    async def _split(
        self, index: int, text: str, token_ids: list[int], is_last: bool
    ) -> DeltaMessage:
        """What a text adds to a choice.

        Raises:
            ApiError: a parser failed.
        """
        if self._form.is_plain:
            return DeltaMessage(text)
        parsers, splitter = self._call.serving.parsers, self._splitters[index]
        try:
            return await parsers.push(self._form, splitter, text, token_ids, is_last)
        except PluginError as error:
            raise self._call.failure(error, "a parser") from None

    def _finish_reason(self, index: int, reason: str | None) -> str | None:
        return self._form.finish_reason(reason, self._splitters[index].num_calls)

    def usage(self) -> dict[str, Any]:
        counts = super().usage()
        if self._form.counts_reasoning:
            num_reasoning = sum(each.num_reasoning_tokens for each in self._splitters)
            counts["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
        return counts

    async def events(self) -> AsyncIterator[bytes]:
        generation = self.generation
        await self._open(is_whole=False)
        events = self.event_writer("chatcmpl", wire.CHUNK_OBJECT)
        unsent_ids = generation.prompts[0] if self.with_ids else None
        silent = set(range(generation.n))
        async for index, delta in generation.deltas():
            if index in silent:
                silent.remove(index)
                opening = wire.opening(index, no_content(self._form.is_plain))
                yield events.choice(opening, prompt_token_ids=unsent_ids)
                unsent_ids = None
            is_last = delta.finish_reason is not None
            token_ids = delta.token_ids if self.with_ids and delta.token_ids else None
            logprobs = self.writer.chat(delta.logprobs) if delta.token_ids else None
            with_tokens = token_ids is not None or logprobs is not None
            parts = deltas(await self._split(index, delta.text, delta.token_ids, is_last))
            if not parts and with_tokens and not is_last:
                parts = [{}]
            for part in parts:
                yield events.choice(wire.chunk(index, part, None, None, token_ids, logprobs))
                token_ids = logprobs = None
            if is_last:
                reasons = self._finish_reason(index, delta.finish_reason), delta.stop_reason
                yield events.choice(wire.chunk(index, {}, *reasons, token_ids, logprobs))
        if self.options.include_usage:
            yield events.usage()

    async def collect(self) -> bytes:
        generation = self.generation
        await self._open(is_whole=True)
        choices = await fold_choices(generation)
        messages = [
            await self._split(index, choice.text, choice.token_ids, True)
            for index, choice in enumerate(choices)
        ]
        return await self.written(lambda: self._whole(choices, messages))

    def _whole(self, choices: list[Choice], messages: list[DeltaMessage]) -> bytes:
        generation = self.generation
        reply = {
            **self.head("chatcmpl", wire.OBJECT),
            "choices": [
                wire.choice(
                    index,
                    message(messages[index], self._form.is_plain),
                    self._finish_reason(index, choice.finish_reason),
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
