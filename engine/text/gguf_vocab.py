"""A GGUF file's vocabulary as a ``tokenizers`` tokenizer.

What all kinds share: tokens that are matched as a whole, and what is put around a text. Splitting
and merging are ``gguf_byte_level``'s and ``gguf_sentencepiece``'s.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.gguf_metadata import Metadata

from .gguf_byte_level import build_byte_level, rule_of
from .gguf_sentencepiece import DEFAULT_IDS, build_sentencepiece, respell
from .gguf_tokens import CONTROL, UNKNOWN, USER_DEFINED, TokenList

_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"


def build_tokenizer(file: GGUFFile) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer, and its special tokens' text by the ecosystem's names.

    Raises:
        ModelFileError: another kind of vocabulary, an unknown splitting rule, or a damaged list.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == _BYTE_LEVEL:
        tokens, adds_bos = TokenList.read(file), rule_of(file).adds_bos
        tokenizer = build_byte_level(file, tokens)
        special = tokens.special_tokens(file, {})
    elif kind == _SENTENCEPIECE:
        tokens, adds_bos = TokenList.read(file, respell), True
        tokenizer = build_sentencepiece(file, tokens)
        special = tokens.special_tokens(file, DEFAULT_IDS)
    else:
        raise ModelFileError(
            f"{file.path}: its vocabulary is of the kind {kind!r}, which is not supported; "
            f"supported: {_BYTE_LEVEL!r} (byte-level BPE), {_SENTENCEPIECE!r} (SentencePiece). A "
            "folder with tokenizer.json may work instead"
        )
    _add_whole_tokens(tokenizer, tokens)
    _add_post_processor(file, tokenizer, special, adds_bos)
    return tokenizer, special


def _add_whole_tokens(tokenizer: Tokenizer, tokens: TokenList) -> None:
    """Tokens that are matched in text as a whole, before any splitting."""
    special, plain = [], []
    for token, token_type in zip(tokens.tokens, tokens.types, strict=True):
        if token_type in (CONTROL, UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif token_type == USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_post_processor(
    file: GGUFFile, tokenizer: Tokenizer, special: dict[str, str], adds_bos: bool
) -> None:
    metadata = Metadata(file)
    wanted = {
        "bos_token": metadata.flag("tokenizer.ggml.add_bos_token", adds_bos),
        "eos_token": metadata.flag("tokenizer.ggml.add_eos_token", False),
    }
    names = [name for name, is_wanted in wanted.items() if is_wanted and name in special]
    if not names:
        return
    # By names of our own: a token's text may hold what the template would read as something else.
    entries: list[Any] = [
        {"id": name, "ids": [tokenizer.token_to_id(special[name])], "tokens": [special[name]]}
        for name in names
    ]
    before = [name for name in names if name == "bos_token"]
    after = [name for name in names if name == "eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=entries
    )
