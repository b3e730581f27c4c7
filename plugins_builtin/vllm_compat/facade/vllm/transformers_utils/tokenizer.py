"""The older path of ``vllm.tokenizers``."""

from __future__ import annotations

from ..tokenizers.protocol import TokenizerLike as AnyTokenizer
from ..tokenizers.registry import (
    cached_get_tokenizer,
    cached_tokenizer_from_config,
    get_tokenizer,
)

__older_path_of__ = "vllm.tokenizers"

__all__ = [
    "AnyTokenizer",
    "cached_get_tokenizer",
    "cached_tokenizer_from_config",
    "get_tokenizer",
]

__surface__ = {
    "AnyTokenizer": "live: the older name of TokenizerLike",
    "cached_get_tokenizer": "live: as get_tokenizer, one object for each path",
    "cached_tokenizer_from_config": "live: the tokenizer of a model, one object for each",
    "get_tokenizer": "live: reads tokenizer.json of a local folder, or a .gguf file",
}
