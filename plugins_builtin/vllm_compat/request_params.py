"""``params_of``: how a request of ``/v1/completions`` that a plugin's own route read is sampled, by
the rules of the server's route. What the model and its context say is looked at by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hookserve.engine.errors import NotServedError
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.sampling_rules import RequestOutputKind
from hookserve.server.errors import ApiError
from hookserve.server.wire_common import SamplingFields
from hookserve.server.wire_completions import NOT_BUILT
from hookserve.server.wire_form import form_of

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_AS_GIVEN = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "min_tokens",
    "prompt_logprobs",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)
_OWN = ("max_tokens", "stream", "stream_options")
"""Not read as the route reads them: a request without new tokens is asked for one."""


def params_of(
    values: Mapping[str, Any], max_tokens: int, defaults: Mapping[str, Any]
) -> SamplingParams:
    """
    Args:
        values: the fields of the request; ``None`` is the same as nothing.
        max_tokens: of new ones, whatever the request has.
        defaults: of temperature, ``top_p``, ``top_k``, ``min_p`` and ``repetition_penalty``, for
            those that the request leaves out.

    Raises:
        ValueError: a field that cannot be, by its name.
        NotServedError: a field that the server's route does not have either.
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name, neutral in NOT_BUILT.items():
        if name in given and given[name] not in neutral:
            raise NotServedError(f"to_sampling_params: {name} is not served here; leave it out")
    known = set(SamplingFields.__struct_fields__) - set(_OWN)
    fields = msgspec.convert({k: v for k, v in given.items() if k in known}, SamplingFields)
    try:
        form = form_of(fields)
    except ApiError as error:
        raise ValueError(str(error)) from error
    logprobs, echo = given.get("logprobs"), given.get("echo")
    wanted = {name: getattr(fields, name) for name in (*_DEFAULTS, *_AS_GIVEN)}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if echo and logprobs is not None:
        wanted.setdefault("prompt_logprobs", logprobs)
    chosen = {name: defaults[name] for name in _DEFAULTS if defaults.get(name) is not None}
    return SamplingParams(
        **{**chosen, **wanted},
        best_of=given.get("best_of"),
        logit_bias={int(key): value for key, value in (fields.logit_bias or {}).items()} or None,
        logprobs=logprobs,
        max_tokens=1 if echo and max_tokens == 0 else max_tokens,
        structured_outputs=form,
        extra_args=fields.vllm_xargs,
        output_kind=(
            RequestOutputKind.DELTA if given.get("stream") else RequestOutputKind.FINAL_ONLY
        ),
    )
