"""From a request's fields to ``SamplingParams``: what fields say together, and what the vocabulary
allows. Types and ranges of single fields are checked by the wire types already; the model's
defaults and what fits are ``engine.request_limits``'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from hookserve.engine.request_limits import ContextLimits, SamplingDefaults
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.sampling_rules import RULE_OF, SamplingParamsError

from .errors import bad_request, cut
from .wire_common import (
    MAX_STOP_LEN,
    MAX_STOP_STRINGS,
    MAX_XARGS_BYTES,
    SamplingFields,
    StreamOptions,
)
from .wire_form import form_of

MAX_BIAS = 100
MAX_SEQUENCES = 1024
"""Of all prompts of one request together."""
MAX_REPEATED_BYTES = 2**22
"""Of what each of a request's sequences is told again: ``vllm_xargs`` as JSON, and 4 bytes for each
token id. More would take longer to repeat than a step takes."""

V = TypeVar("V")


def sampling_params(
    fields: SamplingFields,
    defaults: SamplingDefaults,
    limits: ContextLimits,
    *,
    max_tokens: list[int],
    bad_words_token_ids: tuple[tuple[int, ...], ...],
    best_of: int | None,
    logprobs: int | None,
) -> list[SamplingParams]:
    """The parameters of each prompt; they differ in ``max_tokens`` alone.

    Raises:
        ApiError: 400 for fields that exclude each other, or cannot be.
        InvalidRequestError: for token ids that the model does not have.
    """
    stop_ids, allowed = fields.stop_token_ids or [], fields.allowed_token_ids
    limits.check_token_ids(stop_ids, "stop_token_ids")
    limits.check_token_ids(allowed or [], "allowed_token_ids")
    try:
        params = SamplingParams(
            n=_given(fields.n, 1),
            best_of=best_of,
            temperature=_given(fields.temperature, defaults.temperature),
            top_p=_given(fields.top_p, defaults.top_p),
            top_k=_given(fields.top_k, defaults.top_k),
            min_p=_given(fields.min_p, defaults.min_p),
            repetition_penalty=_given(fields.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=_given(fields.presence_penalty, 0.0),
            frequency_penalty=_given(fields.frequency_penalty, 0.0),
            logit_bias=_logit_bias(fields.logit_bias or {}, limits.vocab_size),
            allowed_token_ids=None if allowed is None else list(dict.fromkeys(allowed)),
            bad_words=list(fields.bad_words or ()),
            bad_words_token_ids=bad_words_token_ids,
            seed=fields.seed,
            max_tokens=max_tokens[0],
            min_tokens=_given(fields.min_tokens, 0),
            logprobs=logprobs,
            prompt_logprobs=fields.prompt_logprobs,
            stop=_stop_strings(fields.stop),
            stop_token_ids=list(stop_ids),
            ignore_eos=bool(fields.ignore_eos),
            eos_token_ids=defaults.eos_token_ids,
            skip_special_tokens=_given(fields.skip_special_tokens, True),
            spaces_between_special_tokens=_given(fields.spaces_between_special_tokens, True),
            include_stop_str_in_output=bool(fields.include_stop_str_in_output),
            structured_outputs=form_of(fields),
            extra_args=_extra_args(fields.vllm_xargs),
        )
        _check_some_are_left(params)
        _check_repeated(params, len(max_tokens) * (best_of or params.n))
        of_most = {most: msgspec.structs.replace(params, max_tokens=most) for most in {*max_tokens}}
        return [of_most[most] for most in max_tokens]
    except SamplingParamsError as error:
        raise bad_request(cut(str(error)), param=error.param, code="invalid_value") from None


def _given(value: V | None, default: V) -> V:
    return default if value is None else value


def _stop_strings(stop: str | list[str] | None) -> list[str]:
    if stop is None:
        return []
    strings = [stop] if isinstance(stop, str) else stop
    if len(strings) > MAX_STOP_STRINGS:
        raise bad_request(
            f"stop: {len(strings)} texts; {MAX_STOP_STRINGS} are the limit",
            param="stop",
            code="invalid_value",
        )
    for i, text in enumerate(strings):
        if 0 < len(text) <= MAX_STOP_LEN:
            continue
        path = "stop" if isinstance(stop, str) else f"stop[{i}]"
        wrong = f"{len(text)} characters; {MAX_STOP_LEN} are the limit" if text else "it is empty"
        raise bad_request(f"{path}: {wrong}", param=path, code="invalid_value")
    return list(dict.fromkeys(strings))


def _logit_bias(given: Mapping[str, float], vocab_size: int) -> dict[int, float] | None:
    """JSON's keys are texts: here they are decimal numbers, written as JSON writes numbers."""
    biases: dict[int, float] = {}
    for key, bias in given.items():
        path = f"logit_bias.{cut(key)}"
        is_number = key.isascii() and key.isdecimal() and len(key) <= 10 and key == str(int(key))
        if not is_number or int(key) >= vocab_size:
            raise bad_request(
                f"{path}: expected a token id of the vocabulary (0 to {vocab_size - 1})",
                param=path,
                code="invalid_token_id",
            )
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise bad_request(
                f"{path}: expected a number from -{MAX_BIAS} to {MAX_BIAS} (given: {bias})",
                param=path,
                code="invalid_value",
            )
        biases[int(key)] = bias
    return biases or None


def _extra_args(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """What ``vllm_xargs`` hold, if anything."""
    if not given:
        return None
    rule = RULE_OF["extra_args"]
    if not rule.accepts(given):
        raise bad_request(
            f"vllm_xargs: expected {rule.expected}", param="vllm_xargs", code="invalid_value"
        )
    num_bytes = len(msgspec.json.encode(given))
    if num_bytes > MAX_XARGS_BYTES:
        raise bad_request(
            f"vllm_xargs: {num_bytes} bytes; {MAX_XARGS_BYTES} are the limit",
            param="vllm_xargs",
            code="invalid_value",
        )
    return given


def _check_some_are_left(params: SamplingParams) -> None:
    """Raise the 400 where there is no token at all that the first one could be."""
    if params.allowed_token_ids is None:
        return
    banned = {ids[0] for ids in params.bad_words_token_ids if len(ids) == 1}
    if params.min_tokens > 0:
        banned |= params.all_stop_token_ids
    if banned.issuperset(params.allowed_token_ids):
        raise bad_request(
            "allowed_token_ids: bad_words and min_tokens leave none of them",
            param="allowed_token_ids",
            code="invalid_value",
        )


def _check_repeated(params: SamplingParams, num_sequences: int) -> None:
    """Raise the 400 for more than all sequences together can be told."""
    sizes = {
        "allowed_token_ids": 4 * len(params.allowed_token_ids or ()),
        "logit_bias": 4 * len(params.logit_bias or ()),
        "stop_token_ids": 4 * len(params.stop_token_ids),
        "bad_words": 4 * sum(map(len, params.bad_words_token_ids)),
        "vllm_xargs": len(msgspec.json.encode(params.extra_args)) if params.extra_args else 0,
    }
    num_bytes = num_sequences * sum(sizes.values())
    if num_bytes > MAX_REPEATED_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise bad_request(
            f"{largest}: with {num_sequences} sequences, each of which is told of it, {num_bytes} "
            f"bytes; {MAX_REPEATED_BYTES} are the limit",
            param=largest,
            code="too_many_sequences",
        )


def check_choices(fields: SamplingFields, num_prompts: int, best_of: int | None) -> None:
    """Raise the 400 for more sequences than one request may have, and for a stream of the best:
    which ones they are is known at their end alone."""
    n = fields.n or 1
    if best_of is not None and best_of < n:
        raise bad_request(
            f"best_of: {best_of} is less than n ({n})", param="best_of", code="invalid_value"
        )
    if fields.stream and best_of is not None and best_of > n:
        raise bad_request(
            f"best_of: more than n ({n}) cannot be streamed", param="best_of", code="invalid_value"
        )
    if num_prompts * (best_of or n) > MAX_SEQUENCES:
        raise bad_request(
            f"{num_prompts} prompts with {best_of or n} sequences each; {MAX_SEQUENCES} sequences "
            "in one request are the limit",
            param="best_of" if best_of is not None else "n",
            code="too_many_sequences",
        )


def check_server_side(fields: SamplingFields, policy: str) -> None:
    """Raise the 400 for what this server, as it was started, does not give.

    ``prompt_logprobs`` are in whole replies alone, and ``priority`` has a meaning where the
    scheduling policy is ``"priority"``.
    """
    if fields.stream and fields.prompt_logprobs is not None:
        raise bad_request(
            "prompt_logprobs cannot be streamed", param="prompt_logprobs", code="invalid_value"
        )
    if fields.priority and policy != "priority":
        raise bad_request(
            "priority: this server serves requests in their order; it would have to be started "
            "with --scheduling-policy priority",
            param="priority",
            code="unsupported_field",
        )


def check_stream_options(fields: SamplingFields) -> StreamOptions:
    """What they are; nothing without them.

    Raises:
        ApiError: 400 for options without a stream.
    """
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise bad_request(
            "stream_options needs stream: true", param="stream_options", code="invalid_value"
        )
    return options or StreamOptions()
