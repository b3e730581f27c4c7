"""SentencePiece vocabularies of GGUF files (``tokenizer.ggml.model`` is ``llama``): Gemma, Llama 2,
Mistral.

SentencePiece's BPE joins the two neighbours whose union has the best score, until none is a piece
(``bpe_model.cc`` of https://github.com/google/sentencepiece); here that is BPE over the merges that
the scores imply. A space is spelled ``▁``; characters that are no piece become pieces for their
bytes.
"""

from __future__ import annotations

import math

from tokenizers import Tokenizer, decoders, models, normalizers

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.gguf_metadata import Metadata

from .gguf_tokens import BYTE, NORMAL, UNDEFINED, USER_DEFINED, TokenList

SPACE = "▁"
DEFAULT_IDS = {"unk_token": 0, "bos_token": 1, "eos_token": 2}
"""Where SentencePiece puts them unless told otherwise."""

MAX_PIECE_CHARS = 256
"""Of a piece that may be merged: SentencePiece makes none above 16 unless told otherwise, and the
time to find a piece's merges grows with its square."""

_BYTE_PIECES = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def respell(token: str, token_type: int) -> str:
    """A piece that is matched as a whole is matched in the text as it was given, spaces and all."""
    return token.replace(SPACE, " ") if token_type == USER_DEFINED else token


def build_sentencepiece(file: GGUFFile, tokens: TokenList) -> Tokenizer:
    """The splitting, merging and joining; whole tokens and BOS are the caller's.

    Args:
        tokens: with the spellings that ``respell`` gives.

    Raises:
        ModelFileError: scores that are missing, of another number, or none; a byte's piece that is
            not spelled as one.
    """
    metadata = Metadata(file)
    adds_space = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    special = tokens.special_tokens(file, DEFAULT_IDS)
    model = models.BPE(
        vocab=tokens.ids,
        merges=_merges(tokens, _scores(metadata, tokens)),
        unk_token=special.get("unk_token"),
        fuse_unk=True,
        byte_fallback=_has_bytes(tokens),
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Prepend(SPACE)] if adds_space else []),
            normalizers.Replace(" ", SPACE),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if adds_space else []),
        ]
    )
    return tokenizer


def _has_bytes(tokens: TokenList) -> bool:
    for token, token_type in zip(tokens.tokens, tokens.types, strict=True):
        if token_type == BYTE and token not in _BYTE_PIECES:
            raise ModelFileError(
                f"{tokens.path}: token {token[:80]!r} is said to be a byte's, but is not spelled "
                "as one (<0x00> to <0xFF>)"
            )
    return not _BYTE_PIECES.isdisjoint(tokens.ids)


def _scores(metadata: Metadata, tokens: TokenList) -> list[float]:
    scores: list[float] = metadata.values("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens.tokens):
        raise metadata.fail(
            "tokenizer.ggml.scores", f"has {len(scores)} values for {len(tokens.tokens)} tokens"
        )
    if not all(map(math.isfinite, scores)):
        raise metadata.fail("tokenizer.ggml.scores", "has a value that is no finite number")
    return scores


def _merges(tokens: TokenList, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two, the piece with the best score first.

    Of two ways to make one piece, and of pieces with equal scores, the longer left part goes
    first, as in transformers' conversion.
    """
    mergeable = {
        token: score
        for token, token_type, score in zip(tokens.tokens, tokens.types, scores, strict=True)
        if token_type in (NORMAL, UNDEFINED) and token not in _BYTE_PIECES
    }
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in mergeable.items():
        if len(piece) > MAX_PIECE_CHARS:
            raise ModelFileError(
                f"{tokens.path}: token {piece[:40]!r}... has {len(piece)} characters; at most "
                f"{MAX_PIECE_CHARS} are believed"
            )
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in mergeable and right in mergeable:
                found.append((-score, -at, -len(right), left, right))
    found.sort(key=_rank)
    return [(left, right) for *_, left, right in found]


def _rank(merge: tuple[float, int, int, str, str]) -> tuple[float, int, int]:
    return merge[:3]
