"""A GGUF file's vocabulary as a ``tokenizers`` tokenizer, byte-level BPE only.

The file names the rule by which text is split before merging (``tokenizer.ggml.pre``). A rule that
is not known here is refused: splitting by another one gives a model tokens that it has never seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile

_CONTROL, _USER_DEFINED = 3, 4

_WORDS_AND_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _byte_level()])


def _split(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(_WORDS_AND_DIGITS % digits), behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, plain])

    return build


_LLAMA3 = _split(r"\p{N}{1,3}")
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _byte_level,
    "gpt-2": _byte_level,
    "gpt2": _byte_level,
    "smollm": _single_digits,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _split(r"\p{N}"),
}
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")

SPECIAL_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def build_tokenizer(file: GGUFFile) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer, and its special tokens' text by the ecosystem's names.

    Raises:
        ModelFileError: another kind of vocabulary, an unknown splitting rule, or a damaged list.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelFileError(
            f"{file.path}: its vocabulary is of the kind {kind!r}, which is not supported; "
            "supported: 'gpt2' (byte-level BPE). A folder with tokenizer.json may work instead"
        )
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise ModelFileError(
            f"{file.path}: its pre-tokenizer {pre!r} is not supported; supported: "
            f"{', '.join(_PRE_TOKENIZERS)}"
        )
    tokens = _list_of(file, "tokenizer.ggml.tokens", str)
    tokenizer = Tokenizer(_bpe(file, tokens, ignore_merges=pre in _LLAMA3_NAMES))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    _add_whole_tokens(file, tokenizer, tokens)
    special_tokens = _special_tokens(file, tokens)
    _add_post_processor(file, tokenizer, special_tokens, default_bos=pre in _LLAMA3_NAMES)
    return tokenizer, special_tokens


def _list_of(file: GGUFFile, key: str, kind: type) -> list[Any]:
    values = file.metadata.get(key)
    if not isinstance(values, list) or not values or not isinstance(values[0], kind):
        raise ModelFileError(f"{file.path}: metadata key {key!r} is missing or no list of values")
    return values


def _bpe(file: GGUFFile, tokens: list[str], *, ignore_merges: bool) -> models.BPE:
    vocab = dict(zip(tokens, itertools.count(), strict=False))
    if len(vocab) != len(tokens):
        twice = next(t for i, t in enumerate(tokens) if vocab[t] != i)
        raise ModelFileError(f"{file.path}: token {twice!r} appears twice in the vocabulary")
    merges: list[tuple[str, str]] = []
    for index, merge in enumerate(_list_of(file, "tokenizer.ggml.merges", str)):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise ModelFileError(
                f"{file.path}: merge {index} {merge!r} names a token that is not in the vocabulary"
            )
        merges.append((left, right))
    return models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges)


def _add_whole_tokens(file: GGUFFile, tokenizer: Tokenizer, tokens: list[str]) -> None:
    """Tokens that are matched in text as a whole, before any splitting."""
    if "tokenizer.ggml.token_type" not in file.metadata:
        return
    types = _list_of(file, "tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise ModelFileError(
            f"{file.path}: {len(types)} token types for {len(tokens)} tokens in the vocabulary"
        )
    control, plain = [], []
    for token, token_type in zip(tokens, types, strict=True):
        if token_type == _CONTROL:
            control.append(AddedToken(token, normalized=False, special=True))
        elif token_type == _USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(plain)


def _special_tokens(file: GGUFFile, tokens: list[str]) -> dict[str, str]:
    special: dict[str, str] = {}
    for name, key in SPECIAL_KEYS.items():
        token_id = file.metadata.get(key)
        # Files of models without such a token often carry a number beyond the vocabulary.
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            special[name] = tokens[token_id]
    return special


def _add_post_processor(
    file: GGUFFile, tokenizer: Tokenizer, special: dict[str, str], *, default_bos: bool
) -> None:
    wants_bos = file.metadata.get("tokenizer.ggml.add_bos_token", default_bos)
    wants_eos = file.metadata.get("tokenizer.ggml.add_eos_token", False)
    before = [special["bos_token"]] if wants_bos and "bos_token" in special else []
    after = [special["eos_token"]] if wants_eos and "eos_token" in special else []
    if not before and not after:
        return
    ids = [(token, tokenizer.token_to_id(token)) for token in {*before, *after}]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=ids
    )
