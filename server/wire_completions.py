"""The request of ``POST /v1/completions``, and how its replies and events are written."""

from __future__ import annotations

from typing import Any

import msgspec

from .wire_common import NOT_BUILT_COMMON, NumChoices, NumLogprobs, SamplingFields
from .wire_json import RequestDecoder

OBJECT = "text_completion"


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]] | None = None
    """A text, token ids, or a list of either; a mixture is refused later, by path."""
    best_of: NumChoices | None = None
    logprobs: NumLogprobs | bool | None = None
    """A number; ``false``, which is the other route's way to say none, is taken too."""


DECODER = RequestDecoder(
    CompletionRequest,
    {
        **NOT_BUILT_COMMON,
        "suffix": ("",),
        "prompt_embeds": (),
        "add_special_tokens": (True,),
    },
)


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


class CompletionEvents:
    """Writes the events of one stream. What does not change is encoded once, here."""

    def __init__(self, reply_id: str, created: int, model: str, with_usage: bool) -> None:
        head = msgspec.json.encode(
            {"id": reply_id, "object": OBJECT, "created": created, "model": model}
        )
        self._open = b"data: " + head[:-1] + b',"choices":['
        self._close = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode

    def delta(self, value: dict[str, Any]) -> bytes:
        """An event with one ``choice``."""
        return self._open + self._encode(value) + self._close

    def usage(self, value: dict[str, Any]) -> bytes:
        """The last event but ``[DONE]``: ``choices`` is empty."""
        return self._open + b'],"usage":' + self._encode(value) + b"}\n\n"
