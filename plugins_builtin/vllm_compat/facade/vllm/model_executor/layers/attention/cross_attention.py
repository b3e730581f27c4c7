"""Attention between a decoder and an encoder: none is served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "CrossAttention": "refused: no encoder is served",
}
