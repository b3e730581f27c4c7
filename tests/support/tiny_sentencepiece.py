"""A small SentencePiece vocabulary as GGUF keys: made by hand, scores as SentencePiece gives them.

``write_sentencepiece_gguf`` puts it into a GGUF file with the weights of ``tiny_gguf``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_gguf import write_tiny_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

MERGED = [
    *("▁t", "he", "in", "▁a", "▁the", "er", "on", "▁▁", "▁th", "re", "an", "at", "ing", "▁w"),
    *("▁▁▁▁", "or", "▁f", "▁fo", "ox", "▁fox", "qu", "ck", "ick", "▁qu", "▁quick", "th", "▁in"),
    *(
        "▁o",
        "ver",
        "ov",
        "▁over",
        "é",
        "日本",
        "▁日本",
        "ab",
        "bc",
        "abc",
        "cd",
        "bcd",
        "abcd",
        "x",
    ),
]
"""Best first. "▁the" is better than "▁th", which it can only be made of together with "e"."""
CHARS = "▁etaoinshrdlcumwfgypbvkq日本語ß.,!?0123456789T"


def pieces() -> tuple[list[str], list[float], list[int]]:
    """Spellings, scores and kinds, in the order of ids: three specials, 256 bytes, the rest."""
    spelled = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scores = [0.0] * len(spelled)
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    normal = [*MERGED, *(char for char in CHARS if char not in MERGED)]
    spelled += normal
    scores += [-float(rank) for rank in range(len(normal))]
    kinds += [NORMAL] * len(normal)
    return spelled, scores, kinds


def sentencepiece_keys(**changes: Any) -> dict[str, Any]:
    """The keys of a GGUF file; ``changes`` by the last part of their name, ``None`` leaves out."""
    tokens, scores, kinds = pieces()
    keys = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
        "merges": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": None,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**keys, **changes}.items()}


def write_sentencepiece_gguf(path: Path, **changes: Any) -> str:
    write_tiny_gguf(path, metadata=sentencepiece_keys(**changes))
    return str(path)
