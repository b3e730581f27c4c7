"""``GET /v1/models`` and ``/v1/models/{id}``: the names under which the model is served, and what a
request may have at most."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hookserve.engine import structured_outputs

from . import limits, prompt_encoder, sampling, wire_common, wire_tools
from .openai_request import serving_of
from .serving import Serving


class ModelsEndpoint:
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", show_model, methods=["GET"]),
        ]


async def list_models(request: Request) -> Response:
    serving = serving_of(request)
    cards = [_card(serving, name) for name in serving.model_names]
    return _json({"object": "list", "data": cards})


async def show_model(request: Request) -> Response:
    serving = serving_of(request)
    return _json(_card(serving, serving.model_name(request.path_params["model"])))


def _card(serving: Serving, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "hookserve",
        "root": serving.model_names[0],
        "parent": None,
        "max_model_len": serving.engine_config.model.max_model_len,
        "limits": _limits(serving),
        "defaults": _defaults(serving),
    }


def _defaults(serving: Serving) -> dict[str, float]:
    """What holds where a request says nothing."""
    fields = dataclasses.asdict(serving.defaults)
    return {name: value for name, value in fields.items() if name != "eos_token_ids"}


def _limits(serving: Serving) -> dict[str, int]:
    """What is refused beyond; ``docs/api.md`` says of what each is the limit."""
    context = serving.limits
    return {
        "tokens": context.capacity,
        "body_bytes": limits.MAX_JSON_BYTES,
        "body_objects": limits.MAX_JSON_PARTS,
        "body_texts": limits.MAX_JSON_TEXTS,
        "prompts": limits.MAX_PROMPTS,
        "messages": limits.MAX_MESSAGES,
        "text_characters": prompt_encoder.MAX_TEXT_CHARS,
        "n": wire_common.MAX_CHOICES,
        "sequences": sampling.MAX_SEQUENCES,
        "stop": wire_common.MAX_STOP_STRINGS,
        "stop_characters": wire_common.MAX_STOP_LEN,
        "stop_token_ids": wire_common.MAX_STOP_IDS,
        "logit_bias": wire_common.MAX_BIASED_TOKENS,
        "allowed_token_ids": wire_common.MAX_ALLOWED_TOKENS,
        "bad_words": wire_common.MAX_BAD_WORDS,
        "bad_word_characters": wire_common.MAX_BAD_WORD_LEN,
        "logprobs": context.most_logprobs,
        "cache_salt_characters": wire_common.MAX_SALT_LEN,
        "vllm_xargs_bytes": wire_common.MAX_XARGS_BYTES,
        "repeated_bytes": sampling.MAX_REPEATED_BYTES,
        "chat_template_kwargs": wire_common.MAX_TEMPLATE_OPTIONS,
        "tools": wire_tools.MAX_TOOLS,
        "tool_calls": wire_tools.MAX_CALLS,
        "form_bytes": structured_outputs.MAX_SPEC_BYTES,
        "schema_levels": structured_outputs.MAX_DEPTH,
        "form_choices": structured_outputs.MAX_CHOICES,
        "regex_bytes": structured_outputs.MAX_REGEX_BYTES,
    }


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
