"""Attention."""

from __future__ import annotations

from hookserve.ops.attention import Attention

__all__ = ["Attention"]

__surface__ = {
    "Attention": "live: models build it; causal, with or without a window and capped scores",
    "ChunkedLocalAttention": "refused: attention in chunks is not served",
    "CrossAttention": "refused: no encoder is served",
    "EncoderOnlyAttention": "refused: attention is causal here",
    "MLAAttention": "refused: no architecture with latent attention is served",
    "MMEncoderAttention": "refused: no images, audio or video are taken",
    "StaticSinkAttention": "refused: no attention with sinks is served",
}
