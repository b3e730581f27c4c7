"""Attention, by an older path of what ``vllm.model_executor.layers.attention`` and
``vllm.v1.attention.backend`` hold."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

__older_path_of__ = "vllm.model_executor.layers.attention and vllm.v1.attention.backend"

__all__ = ["Attention", "AttentionBackend", "AttentionImpl", "AttentionMetadata", "AttentionType"]

__surface__ = {
    "Attention": "live: models build it; an older path of vllm.model_executor.layers.attention",
    "AttentionBackend": (
        "live: base of what --attention-backend names; blocks come first in its cache; an "
        "older path of vllm.v1.attention.backend"
    ),
    "AttentionImpl": (
        "live: base of what computes a layer; an older path of vllm.v1.attention.backend"
    ),
    "AttentionMetadata": (
        "live: what a backend without a builder is given in each step; an older path of "
        "vllm.v1.attention.backend"
    ),
    "AttentionType": (
        "live: DECODER is what layers are; the others are refused when a layer is built; an "
        "older path of vllm.v1.attention.backend"
    ),
}

__getattr__ = names_from(
    __name__,
    {
        "Attention": ".layer",
        "AttentionBackend": "..v1.attention.backend",
        "AttentionImpl": "..v1.attention.backend",
        "AttentionMetadata": "..v1.attention.backend",
        "AttentionType": "..v1.attention.backend",
    },
)
