"""The base of layers that keep something in the KV cache."""

from __future__ import annotations

from hookserve.ops.attention_backend import AttentionLayerBase

__all__ = ["AttentionLayerBase"]

__surface__ = {
    "AttentionLayerBase": (
        "live: base of Attention; a layer of a plugin's own that derives from it and enters "
        "static_forward_context has a cache of keys and values too"
    ),
}
