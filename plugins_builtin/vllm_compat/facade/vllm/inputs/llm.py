"""The forms of a prompt."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]

_NO_MEDIA = "refused: prompts are texts and token ids alone; there is no media, and no embedding"
__surface__ = {
    "DataPrompt": "refused: there is no pooling route that takes data; give text or token ids",
    "EmbedsPrompt": _NO_MEDIA,
    "ExplicitEncoderDecoderPrompt": "refused: no model with an encoder is served",
    "MultiModalDataDict": _NO_MEDIA,
    "MultiModalUUIDDict": _NO_MEDIA,
    "PromptType": "live: what LLM.generate and AsyncLLM.generate take",
    "SingletonPrompt": "live: the same",
    "TextPrompt": "live: a prompt of text",
    "TokensPrompt": "live: a prompt of token ids",
}


class _Salt(TypedDict, total=False):
    cache_salt: str


class TextPrompt(_Salt):
    prompt: str


class _Shown(TypedDict, total=False):
    prompt: str


class TokensPrompt(_Salt, _Shown):
    prompt_token_ids: list[int]


SingletonPrompt = str | list[int] | TextPrompt | TokensPrompt
PromptType = SingletonPrompt
