"""The base of layers that keep something in the KV cache."""

from __future__ import annotations

from hookserve.ops.attention_backend import AttentionLayerBase

__all__ = ["AttentionLayerBase"]

__surface__ = {
    "AttentionLayerBase": (
        "live: base of Attention; a layer of another kind keeps nothing in the cache"
    ),
}
