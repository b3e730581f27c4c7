"""Rotary positions."""

from __future__ import annotations

from hookserve.ops.rotary_embedding import RotaryEmbedding, get_rope

__all__ = ["RotaryEmbedding", "get_rope"]

__surface__ = {
    "RotaryEmbedding": (
        "live: get_rope builds it where whole heads turn; a scaled rotation is the same class with "
        "its frequencies by keyword. There is no cos_sin_cache"
    ),
    "get_rope": (
        "live: models take their rotary embedding from it; halves of a head turn, interleaved "
        "pairs are refused"
    ),
    "MRotaryEmbedding": "refused: positions have one row here, as no images or sound are taken",
    "DualChunkRotaryEmbedding": "refused: no attention in chunks is served",
}
