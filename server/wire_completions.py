"""The request of ``POST /v1/completions``, and how its replies and events are written."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .wire_common import NOT_BUILT_COMMON, NumChoices, NumLogprobs, SamplingFields
from .wire_json import RequestDecoder

OBJECT = "text_completion"

MaxTokensOrNone = Annotated[int, msgspec.Meta(ge=0)]


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]] | None = None
    """A text, token ids, or a list of either; a mixture is refused later, by path."""
    best_of: NumChoices | None = None
    echo: bool | None = None
    max_tokens: MaxTokensOrNone | None = None
    """0 with ``echo`` alone: nothing is generated, and the prompt is the whole reply."""
    logprobs: NumLogprobs | bool | None = None
    """A number; ``false``, which is the other route's way to say none, is taken too."""


NOT_BUILT: dict[str, tuple[Any, ...]] = {
    **NOT_BUILT_COMMON,
    "suffix": ("",),
    "prompt_embeds": (),
}
DECODER = RequestDecoder(CompletionRequest, NOT_BUILT)


def choice(
    index: int,
    text: str,
    finish_reason: str | None,
    stop_reason: str | int | None,
    logprobs: dict[str, Any] | None = None,
    **extras: Any,
) -> dict[str, Any]:
    """One entry of ``choices``. What ``extras`` holds stands in it where it is not ``None``."""
    value: dict[str, Any] = {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
    if stop_reason is not None:
        value["stop_reason"] = stop_reason
    for name, extra in extras.items():
        if extra is not None:
            value[name] = extra
    return value
