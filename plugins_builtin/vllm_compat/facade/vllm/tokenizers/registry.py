"""Tokenizers by the path of their model."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from hookserve.engine.text.tokenizer import load_tokenizer

from .protocol import TokenizerLike

if TYPE_CHECKING:
    from hookserve.engine.vllm_config import ModelConfig

__all__ = ["cached_get_tokenizer", "cached_tokenizer_from_config", "get_tokenizer"]

__surface__ = {
    "TokenizerRegistry": "refused: one kind of tokenizer is read, tokenizer.json or GGUF; convert "
    "the tokenizer",
    "cached_get_tokenizer": "live: as get_tokenizer, one object for each path",
    "cached_tokenizer_from_config": "live: the tokenizer of a model, one object for each",
    "get_tokenizer": "live: reads tokenizer.json of a local folder, or a .gguf file",
}


def get_tokenizer(tokenizer_name: str | os.PathLike[str]) -> TokenizerLike:
    """
    Raises:
        hookserve.engine.errors.ModelFileError: there is none at this path, or it is damaged.
    """
    return load_tokenizer(os.fspath(tokenizer_name))


cached_get_tokenizer = functools.lru_cache(get_tokenizer)


def cached_tokenizer_from_config(model_config: ModelConfig) -> TokenizerLike:
    return cached_get_tokenizer(model_config.tokenizer)
