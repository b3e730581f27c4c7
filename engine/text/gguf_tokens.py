"""``TokenList``: a GGUF file's tokens with their kinds, checked, whatever splits the text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.gguf_metadata import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""``tokenizer.ggml.token_type``: SentencePiece's kinds of pieces."""
UNDEFINED = 0

SPECIAL_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


@dataclass(frozen=True, slots=True)
class TokenList:
    """``tokens[i]`` is spelled so and is of kind ``types[i]``; ``ids`` is the way back."""

    path: str
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]

    @classmethod
    def read(cls, file: GGUFFile, respell: Callable[[str, int], str] | None = None) -> TokenList:
        """The file's list; without kinds every token is a normal one.

        Args:
            respell: ``(spelling, kind)`` to the spelling to use.

        Raises:
            ModelFileError: no list, another number of kinds than tokens, or a token twice.
        """
        metadata = Metadata(file)
        tokens: list[str] = metadata.values("tokenizer.ggml.tokens", str)
        types = [NORMAL] * len(tokens)
        if metadata.has("tokenizer.ggml.token_type"):
            types = metadata.values("tokenizer.ggml.token_type", int)
        if len(types) != len(tokens):
            raise ModelFileError(
                f"{file.path}: {len(types)} token types for {len(tokens)} tokens in the vocabulary"
            )
        if respell is not None:
            tokens = list(map(respell, tokens, types))
        ids = dict(zip(tokens, itertools.count(), strict=False))
        if len(ids) != len(tokens):
            twice = next(token for at, token in enumerate(tokens) if ids[token] != at)
            raise ModelFileError(
                f"{file.path}: token {twice[:80]!r} appears twice in the vocabulary"
            )
        return cls(file.path, tokens, types, ids)

    def special_tokens(self, file: GGUFFile, defaults: dict[str, int]) -> dict[str, str]:
        """Spellings by the ecosystem's names; ``defaults``: ids by those, where no key says one."""
        special: dict[str, str] = {}
        for name, key in SPECIAL_KEYS.items():
            token_id = file.metadata.get(key, defaults.get(name))
            # Files of models without such a token often carry a number beyond the vocabulary.
            if isinstance(token_id, int) and 0 <= token_id < len(self.tokens):
                special[name] = self.tokens[token_id]
        return special
