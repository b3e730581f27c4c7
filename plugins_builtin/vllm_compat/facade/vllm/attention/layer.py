"""Attention, by an older path of ``vllm.model_executor.layers.attention``."""

from __future__ import annotations

from hookserve.ops.attention import Attention

from ..v1.attention.backend import AttentionType

__older_path_of__ = "vllm.model_executor.layers.attention"

__all__ = ["Attention", "AttentionType"]

__surface__ = {
    "Attention": "live: models build it",
    "AttentionType": (
        "live: DECODER is what layers are; the others are refused when a layer is built"
    ),
    "MLAAttention": "refused: no architecture with latent attention is served",
    "MultiHeadAttention": "refused: no encoder is served",
}
