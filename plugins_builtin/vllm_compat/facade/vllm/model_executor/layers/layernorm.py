"""Normalizations."""

from __future__ import annotations

from hookserve.ops.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm

__all__ = ["GemmaRMSNorm", "LayerNorm", "RMSNorm"]

__surface__ = {
    "GemmaRMSNorm": "live: models build it",
    "RMSNorm": "live: models build it",
    "LayerNorm": "live: a model of a plugin computes with it; it is no op, so nothing replaces it",
    "RMSNormGated": "refused: no architecture with gated norms is served; compute it in the model",
}
