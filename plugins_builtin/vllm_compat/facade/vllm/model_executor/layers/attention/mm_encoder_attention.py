"""Attention of encoders of images: none is served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "MMEncoderAttention": "refused: no images, audio or video are taken",
}
