"""What an attention backend is."""

from __future__ import annotations

from hookserve.ops.attention import Attention as AttentionLayer
from hookserve.ops.attention_backend import AttentionBackend, AttentionImpl
from hookserve.ops.attention_builder import (
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from hookserve.ops.context import AttentionMetadata

__all__ = [
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionImpl",
    "AttentionLayer",
    "AttentionMetadata",
    "AttentionMetadataBuilder",
    "AttentionType",
    "CommonAttentionMetadata",
    "MultipleOf",
]

__surface__ = {
    "AttentionBackend": (
        "live: base of what --attention-backend names; blocks come first in its cache"
    ),
    "AttentionImpl": "live: base of what computes a layer",
    "AttentionMetadata": "live: what a backend without a builder is given in each step",
    "AttentionType": (
        "live: DECODER is what layers are; the others are refused when a layer is built"
    ),
    "AttentionCGSupport": "shape: what a builder may say; no graphs are captured",
    "AttentionLayer": "shape: for annotations; the layer that a backend is given",
    "AttentionMetadataBuilder": (
        "live: build is called in each step for a backend whose get_builder_cls names one"
    ),
    "CommonAttentionMetadata": "live: what a builder is given",
    "MLAAttentionImpl": "refused: no architecture with latent attention is served",
    "MultipleOf": "shape: a block size of which multiples are meant",
}


class AttentionType:
    """Kinds of attention, by the names that layers are given."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"
