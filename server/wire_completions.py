"""The request of ``POST /v1/completions``, and how its replies and events are written."""

from __future__ import annotations

from typing import Any

import msgspec

from .wire_common import NOT_BUILT_COMMON, SamplingFields
from .wire_json import RequestDecoder

OBJECT = "text_completion"


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]] | None = None
    """A text, token ids, or a list of either; a mixture is refused later, by path."""


DECODER = RequestDecoder(
    CompletionRequest,
    {
        **NOT_BUILT_COMMON,
        "best_of": (1,),
        "logprobs": (False,),
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
    token_ids: list[int] | None = None,
    prompt_token_ids: list[int] | None = None,
) -> dict[str, Any]:
    """One entry of ``choices`` in the whole reply; ids only where they were asked for."""
    value: dict[str, Any] = {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": finish_reason,
    }
    if stop_reason is not None:
        value["stop_reason"] = stop_reason
    if token_ids is not None:
        value["token_ids"] = token_ids
    if prompt_token_ids is not None:
        value["prompt_token_ids"] = prompt_token_ids
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

    def delta(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        stop_reason: str | int | None = None,
        token_ids: list[int] | None = None,
        prompt_token_ids: list[int] | None = None,
    ) -> bytes:
        value = choice(index, text, finish_reason, stop_reason, token_ids, prompt_token_ids)
        return self._open + self._encode(value) + self._close

    def usage(self, value: dict[str, Any]) -> bytes:
        """The last event but ``[DONE]``: ``choices`` is empty."""
        return self._open + b'],"usage":' + self._encode(value) + b"}\n\n"
