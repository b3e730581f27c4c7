"""From a request's fields to ``SamplingParams``. Types and ranges of single fields are checked by
the wire types already; the model's defaults and what fits are ``engine.request_limits``'."""

from __future__ import annotations

from typing import TypeVar

from hookserve.engine.request_limits import ContextLimits, SamplingDefaults
from hookserve.engine.sampling_params import SamplingParams

from .errors import bad_request
from .wire_common import MAX_STOP_STRINGS, SamplingFields

V = TypeVar("V")


def sampling_params(
    fields: SamplingFields, defaults: SamplingDefaults, limits: ContextLimits, max_tokens: int
) -> SamplingParams:
    """
    Raises:
        ApiError: 400 for stop strings that cannot be.
        InvalidRequestError: for stop token ids that the model does not have.
    """
    stop_ids = fields.stop_token_ids or []
    limits.check_token_ids(stop_ids, "stop_token_ids")
    return SamplingParams(
        temperature=_given(fields.temperature, defaults.temperature),
        top_p=_given(fields.top_p, defaults.top_p),
        top_k=_given(fields.top_k, defaults.top_k),
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
        seed=fields.seed,
        max_tokens=max_tokens,
        stop=_stop_strings(fields.stop),
        stop_token_ids=tuple(stop_ids),
        ignore_eos=bool(fields.ignore_eos),
        eos_token_ids=defaults.eos_token_ids,
        skip_special_tokens=_given(fields.skip_special_tokens, True),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
    )


def _given(value: V | None, default: V) -> V:
    return default if value is None else value


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if len(strings) > MAX_STOP_STRINGS:
        raise bad_request(
            f"{len(strings)} stop strings; {MAX_STOP_STRINGS} are the limit", param="stop"
        )
    for i, text in enumerate(strings):
        if not text:
            path = "stop" if isinstance(stop, str) else f"stop[{i}]"
            raise bad_request(f"{path}: a stop string must not be empty", param=path)
    return tuple(dict.fromkeys(strings))


def check_stream_options(fields: SamplingFields) -> bool:
    """Whether the stream ends with a usage chunk.

    Raises:
        ApiError: 400 for options without a stream, and for one that is not built.
    """
    options = fields.stream_options
    if options is None:
        return False
    if not fields.stream:
        raise bad_request("stream_options needs stream: true", param="stream_options")
    if options.continuous_usage_stats:
        raise bad_request(
            "stream_options.continuous_usage_stats is not supported yet; leave it out",
            param="stream_options.continuous_usage_stats",
            code="unsupported_field",
        )
    return bool(options.include_usage)
