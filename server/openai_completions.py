"""``POST /v1/completions``: texts or token ids in, one choice a prompt out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from . import wire_completions as wire
from .errors import bad_request
from .generation import Generation
from .limits import check_num_prompts
from .openai_request import read_request, reply_id, serving_of
from .sampling import check_stream_options, sampling_params
from .serving import Serving
from .streaming import EventStream, until_gone
from .wire_common import usage
from .wire_completions import CompletionEvents, CompletionRequest

PATH = "/v1/completions"
DEFAULT_MAX_TOKENS = 16


class CompletionsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, create_completion, methods=["POST"])]


async def create_completion(request: Request) -> Response:
    serving = serving_of(request)
    wanted, headers = await read_request(request, wire.DECODER)
    model = serving.model_name(wanted.model)
    with_usage = check_stream_options(wanted)
    prompts = await _token_prompts(serving, wanted)
    limits = serving.limits
    params = [
        sampling_params(
            wanted,
            serving.defaults,
            limits,
            limits.max_tokens(len(prompt), wanted.max_tokens, DEFAULT_MAX_TOKENS),
        )
        for prompt in prompts
    ]
    generation = Generation(
        serving,
        request_id=request.state.request_id,
        route=PATH,
        model=model,
        prompts=prompts,
        params=params,
    )
    if wanted.stream:
        return EventStream(generation, _events(generation, wanted, with_usage), headers)
    body = await until_gone(request.receive, generation, _collect(generation, wanted))
    return Response(body, headers=headers, media_type="application/json")


async def _token_prompts(serving: Serving, wanted: CompletionRequest) -> list[list[int]]:
    """Every prompt as token ids, in the client's order.

    Raises:
        ApiError: 400 for an empty prompt, a mixed list, or ids beyond the vocabulary.
    """
    texts, token_lists = split_prompt(wanted.prompt)
    check_num_prompts(len(texts) + len(token_lists))
    for path, ids in token_lists.items():
        serving.limits.check_token_ids(ids, path)
    prompts = list(token_lists.values()) or await serving.encode(list(texts.values()))
    for path, prompt in zip(texts or token_lists, prompts, strict=True):
        if not prompt:
            raise bad_request(f"{path}: the prompt is empty", param=path, code="empty_prompt")
    return prompts


def split_prompt(
    prompt: str | list[int | str | list[int]] | None,
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """The prompt's texts and token lists by their path; one of the two is empty.

    Raises:
        ApiError: 400 for no prompt, an empty list, or a list of different kinds.
    """
    if prompt is None:
        raise bad_request("the field 'prompt' is required", param="prompt", code="missing_field")
    if isinstance(prompt, str):
        return {"prompt": prompt}, {}
    if not prompt:
        raise bad_request("prompt: the list is empty", param="prompt", code="empty_prompt")
    kind = type(prompt[0])
    for i, item in enumerate(prompt):
        if type(item) is not kind:
            raise bad_request(
                f"prompt[{i}]: texts, token ids and lists of token ids cannot be mixed",
                param=f"prompt[{i}]",
                code="invalid_value",
            )
    if kind is int:
        return {}, {"prompt": cast("list[int]", prompt)}
    named = {f"prompt[{i}]": item for i, item in enumerate(prompt)}
    if kind is str:
        return cast("dict[str, str]", named), {}
    return {}, cast("dict[str, list[int]]", named)


async def _events(
    generation: Generation, wanted: CompletionRequest, with_usage: bool
) -> AsyncIterator[bytes]:
    events = CompletionEvents(reply_id("cmpl"), int(time.time()), generation.model, with_usage)
    with_ids = bool(wanted.return_token_ids)
    unsent_prompts = dict(enumerate(generation.prompts)) if with_ids else {}
    async for index, delta in generation.deltas():
        if not (delta.text or delta.finish_reason or (with_ids and delta.token_ids)):
            continue
        yield events.delta(
            index,
            delta.text,
            delta.finish_reason,
            delta.stop_reason,
            delta.token_ids if with_ids else None,
            unsent_prompts.pop(index, None),
        )
    if with_usage:
        yield events.usage(_usage(generation))


async def _collect(generation: Generation, wanted: CompletionRequest) -> bytes:
    """The fold of the stream: the same deltas, joined."""
    texts: list[list[str]] = [[] for _ in generation.prompts]
    token_ids: list[list[int]] = [[] for _ in generation.prompts]
    ends: list[tuple[str | None, str | int | None]] = [(None, None)] * len(texts)
    async for index, delta in generation.deltas():
        texts[index].append(delta.text)
        token_ids[index].extend(delta.token_ids)
        if delta.finish_reason is not None:
            ends[index] = (delta.finish_reason, delta.stop_reason)
    with_ids = bool(wanted.return_token_ids)
    return msgspec.json.encode(
        {
            "id": reply_id("cmpl"),
            "object": wire.OBJECT,
            "created": int(time.time()),
            "model": generation.model,
            "choices": [
                wire.choice(
                    index,
                    "".join(parts),
                    *ends[index],
                    token_ids[index] if with_ids else None,
                    generation.prompts[index] if with_ids else None,
                )
                for index, parts in enumerate(texts)
            ],
            "usage": _usage(generation),
        }
    )


def _usage(generation: Generation) -> dict[str, object]:
    return usage(
        generation.num_prompt_tokens,
        generation.num_completion_tokens,
        generation.num_cached_tokens,
    )
