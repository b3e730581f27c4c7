"""``POST /v1/completions``: texts or token ids in, ``n`` choices a prompt out."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.text.output import TextDelta

from . import wire_completions as wire
from .api_call import ApiCall, Checked, open_call
from .choice import Choice, fold_choices
from .echo import Echo, check_echo, is_prompt_only, when_known, with_prompt_logprobs
from .errors import bad_request
from .openai_reply import Reply
from .prompts import Prompts, read_prompts
from .sampling import check_choices, check_server_side, check_stream_options, sampling_params
from .serving import Serving
from .wire_common import DEFAULT_MAX_TOKENS
from .wire_completions import CompletionRequest
from .wire_events import EventWriter

PATH = "/v1/completions"


class CompletionsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self.create_completion, methods=["POST"])]

    async def create_completion(self, request: Request) -> Response:
        async with open_call(request, PATH, wire.DECODER, _check) as call:
            serving, wanted, checked = call.serving, call.wanted, call.checked
            limits = serving.limits
            prompts = await self.render_completion_request(serving, checked.prompt)
            num_shown = (wanted.n or 1) * sum(len(prompt) for prompt in prompts.values())
            limits.check_prompt_logprobs(wanted.prompt_logprobs, num_shown)
            if wanted.echo:
                limits.check_prompt_logprobs(checked.num_logprobs, num_shown, "logprobs")
            asked = 1 if is_prompt_only(wanted) else wanted.max_tokens  # the engine's least
            params = sampling_params(
                wanted,
                serving.defaults,
                limits,
                max_tokens=[
                    limits.max_tokens(len(prompt), asked, DEFAULT_MAX_TOKENS, prompt_path=path)
                    for path, prompt in prompts.items()
                ],
                bad_words_token_ids=await serving.prompts.spell_bad_words(wanted.bad_words),
                best_of=wanted.best_of,
                logprobs=checked.num_logprobs,
            )
            if wanted.echo and checked.num_top is not None:
                params = [with_prompt_logprobs(each, checked.num_top) for each in params]
            await call.check_params(params)
            token_lists, echo = list(prompts.values()), None
            if wanted.echo:
                echo = await Echo.of(serving.tokenizer, checked.prompt, token_lists, params[0])
            return await CompletionReply(call, token_lists, params, echo).response(request)

    async def render_completion_request(
        self, serving: Serving, given: Prompts
    ) -> dict[str, list[int]]:
        """Every prompt as token ids, by its path, in the client's order.

        Raises:
            ApiError: 400 for an empty prompt.
        """
        prompts = given.token_lists or await serving.prompts.encode(
            given.texts,
            add_special_tokens=given.add_special_tokens,
            shortening=given.shortening,
        )
        for path, prompt in prompts.items():
            if not prompt:
                raise bad_request(f"{path}: the prompt is empty", param=path, code="empty_prompt")
        return prompts


def _check(serving: Serving, wanted: CompletionRequest) -> Checked:
    model = serving.model_name(wanted.model)
    options = check_stream_options(wanted)
    num_logprobs = _num_logprobs(wanted)
    num_top = serving.limits.num_logprobs(num_logprobs, "logprobs")
    check_server_side(wanted, serving.engine_config.scheduler.policy)
    check_echo(wanted)
    prompts = read_prompts(wanted, serving.limits)
    check_choices(wanted, len(prompts.texts) + len(prompts.token_lists), wanted.best_of)
    return Checked(model, prompts, options, num_logprobs, num_top)


def _num_logprobs(wanted: CompletionRequest) -> int | None:
    """How many of the likeliest tokens are wanted at each position; ``None``: no logprobs.

    Raises:
        ApiError: 400 for the chat route's ``true``, which is no number.
    """
    if wanted.logprobs is True:
        raise bad_request(
            "logprobs: expected a number (given: true)", param="logprobs", code="invalid_value"
        )
    return None if wanted.logprobs is False else wanted.logprobs


class CompletionReply(Reply):
    """``n`` choices for each prompt.

    Args:
        echo: what stands in front of them, if anything.
    """

    def __init__(
        self,
        call: ApiCall,
        prompts: list[list[int]],
        params: list[SamplingParams],
        echo: Echo | None,
    ) -> None:
        super().__init__(call, prompts, params, is_prompt_only=is_prompt_only(call.wanted))
        self._echo = echo

    async def events(self) -> AsyncIterator[bytes]:
        generation = self.generation
        events = self.event_writer("cmpl", wire.OBJECT)
        unopened = set(range(len(generation.prompts) * generation.n))
        needs_prompt = self._echo is not None and not self.writer.is_silent
        deltas = when_known(generation) if needs_prompt else generation.deltas()
        async for index, delta in deltas:
            opens = index in unopened
            has_more = self.with_ids or not self.writer.is_silent or (opens and self._echo)
            if delta.text or delta.finish_reason or (delta.token_ids and has_more):
                unopened.discard(index)
                write = functools.partial(self._event, events, index, delta, opens)
                yield await self.written(write) if opens and needs_prompt else write()
        if self.options.include_usage:
            yield events.usage()

    async def collect(self) -> bytes:
        generation = self.generation
        choices = await fold_choices(generation)
        return await self.written(lambda: self._whole(choices))

    def _event(self, events: EventWriter, index: int, delta: TextDelta, opens: bool) -> bytes:
        return events.choice(self._choice(index, delta, opens=opens))

    def _whole(self, choices: list[Choice]) -> bytes:
        about_prompts = [self.writer.prompt(each) for each in self.generation.prompt_logprobs]
        shown = []
        for index, choice in enumerate(choices):
            value = self._choice(index, choice, opens=True)
            if about_prompts[choice.prompt_index] is not None:
                value["prompt_logprobs"] = about_prompts[choice.prompt_index]
            shown.append(value)
        head = self.head("cmpl", wire.OBJECT)
        return msgspec.json.encode({**head, "choices": shown, "usage": self.usage()})

    def _choice(self, index: int, part: TextDelta | Choice, *, opens: bool) -> dict[str, Any]:
        """A choice, or a part of one.

        Args:
            opens: nothing of the choice was written before.
        """
        generation, echo, writer = self.generation, self._echo, self.writer
        at = index // generation.n
        prompt, text = generation.prompts[at], part.text
        before = None if echo is None else echo.texts[at]
        num_before = 0 if before is None else len(before.text)
        logprobs = writer.completion(part.logprobs, part.text_offsets, num_before)
        if before is not None and opens:
            text = before.text + text
            if not writer.is_silent:
                entries = generation.prompt_logprobs[at]
                assert entries is not None, "a choice opens when those of its prompt are known"
                echoed = writer.echo(prompt, entries, before.offsets)
                logprobs = {name: echoed[name] + (logprobs or {}).get(name, []) for name in echoed}
        return wire.choice(
            index,
            text,
            part.finish_reason,
            part.stop_reason,
            logprobs,
            token_ids=part.token_ids if self.with_ids else None,
            prompt_token_ids=prompt if self.with_ids and opens else None,
        )
