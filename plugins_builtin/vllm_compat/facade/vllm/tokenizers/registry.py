"""Tokenizers by the path of their model."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from hookserve.engine.text.tokenizer import load_tokenizer
from hookserve.plugins_builtin.vllm_compat.revisions import refuse_revision

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


def get_tokenizer(
    tokenizer_name: str | os.PathLike[str],
    *,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> TokenizerLike:
    """
    Args:
        tokenizer_mode: ``auto`` or ``hf``, which are one.
        trust_remote_code: a leave that is not needed: a checkpoint's code is never run.

    Raises:
        hookserve.engine.errors.ModelFileError: there is none at this path, or it is damaged.
        ValueError: another mode, or a revision, which local files have none of.
    """
    del trust_remote_code
    if tokenizer_mode not in ("auto", "hf"):
        raise ValueError(f"tokenizer_mode {tokenizer_mode!r}: expected 'auto' or 'hf'")
    refuse_revision(tokenizer_name, revision)
    return load_tokenizer(os.fspath(tokenizer_name))


cached_get_tokenizer = functools.lru_cache(get_tokenizer)


def cached_tokenizer_from_config(model_config: ModelConfig) -> TokenizerLike:
    return cached_get_tokenizer(model_config.tokenizer)
