"""What an attention backend is, by an older path of ``vllm.v1.attention.backend``."""

from __future__ import annotations

from ...v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadata,
    AttentionType,
)

__older_path_of__ = "vllm.v1.attention.backend"

__all__ = [
    "AttentionBackend",
    "AttentionImpl",
    "AttentionLayer",
    "AttentionMetadata",
    "AttentionType",
]

__surface__ = {
    "AttentionBackend": (
        "live: base of what --attention-backend names; blocks come first in its cache"
    ),
    "AttentionImpl": "live: base of what computes a layer",
    "AttentionLayer": "shape: for annotations; the layer that a backend is given",
    "AttentionMetadata": "live: what a backend without a builder is given in each step",
    "AttentionType": (
        "live: DECODER is what layers are; the others are refused when a layer is built"
    ),
    "MLAAttentionImpl": "refused: no architecture with latent attention is served",
}
