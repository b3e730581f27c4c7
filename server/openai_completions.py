"""``POST /v1/completions``: texts or token ids in, ``n`` choices a prompt out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from . import wire_completions as wire
from .api_call import Checked, open_call
from .choice import Choice, fold_choices
from .errors import bad_request
from .openai_reply import Reply
from .prompts import Prompts, read_prompts
from .sampling import check_choices, check_server_side, check_stream_options, sampling_params
from .serving import Serving
from .wire_common import DEFAULT_MAX_TOKENS
from .wire_completions import CompletionRequest

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
            params = sampling_params(
                wanted,
                serving.defaults,
                limits,
                max_tokens=[
                    limits.max_tokens(
                        len(prompt), wanted.max_tokens, DEFAULT_MAX_TOKENS, prompt_path=path
                    )
                    for path, prompt in prompts.items()
                ],
                bad_words_token_ids=await serving.prompts.spell_bad_words(wanted.bad_words),
                best_of=wanted.best_of,
                logprobs=checked.num_logprobs,
            )
            await call.check_params(params)
            return await CompletionReply(call, list(prompts.values()), params).response(request)

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
    """``n`` choices for each prompt."""

    async def events(self) -> AsyncIterator[bytes]:
        generation = self.generation
        events = self.event_writer("cmpl", wire.OBJECT)
        unsent = dict.fromkeys(range(len(generation.prompts) * generation.n), self.with_ids)
        async for index, delta in generation.deltas():
            logprobs = self.writer.completion(delta.logprobs, delta.text_offsets)
            with_tokens = bool(delta.token_ids) and (self.with_ids or logprobs is not None)
            if not (delta.text or delta.finish_reason or with_tokens):
                continue
            prompt = generation.prompts[index // generation.n] if unsent.pop(index, False) else None
            value = wire.choice(
                index,
                delta.text,
                delta.finish_reason,
                delta.stop_reason,
                logprobs,
                token_ids=delta.token_ids if self.with_ids else None,
                prompt_token_ids=prompt,
            )
            yield events.choice(value)
        if self.options.include_usage:
            yield events.usage()

    async def collect(self) -> bytes:
        generation = self.generation
        choices = await fold_choices(generation)
        about_prompts = [self.writer.prompt(each) for each in generation.prompt_logprobs]
        return msgspec.json.encode(
            {
                **self.head("cmpl", wire.OBJECT),
                "choices": [
                    self._choice(index, choice, about_prompts[choice.prompt_index])
                    for index, choice in enumerate(choices)
                ],
                "usage": self.usage(),
            }
        )

    def _choice(
        self, index: int, choice: Choice, about_prompt: list[dict[str, Any] | None] | None
    ) -> dict[str, Any]:
        prompt = self.generation.prompts[choice.prompt_index]
        return wire.choice(
            index,
            choice.text,
            choice.finish_reason,
            choice.stop_reason,
            self.writer.completion(choice.logprobs, choice.text_offsets),
            token_ids=choice.token_ids if self.with_ids else None,
            prompt_token_ids=prompt if self.with_ids else None,
            prompt_logprobs=about_prompt,
        )
