"""Tokenizers: what they can be asked, and how one is read."""

from __future__ import annotations

from . import protocol, registry
from .protocol import TokenizerLike
from .registry import cached_get_tokenizer, cached_tokenizer_from_config, get_tokenizer

__all__ = [
    "TokenizerLike",
    "cached_get_tokenizer",
    "cached_tokenizer_from_config",
    "get_tokenizer",
]

__surface__ = {**protocol.__surface__, **registry.__surface__}
