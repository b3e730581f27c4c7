"""Latent attention: none is served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "MLAAttention": "refused: no architecture with latent attention is served",
}
