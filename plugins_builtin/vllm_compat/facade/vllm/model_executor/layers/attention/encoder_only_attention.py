"""Attention of encoders: none is served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "EncoderOnlyAttention": "refused: attention is causal here",
}
