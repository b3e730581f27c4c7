"""Attention."""

from __future__ import annotations

from hookserve.ops.attention import Attention

__all__ = ["Attention"]

__surface__ = {
    "Attention": "live: models build it; causal, with or without a window and capped scores",
}
