"""Normalizations."""

from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm

__all__ = ["GemmaRMSNorm", "RMSNorm"]

__surface__ = {
    "GemmaRMSNorm": "live: models build it",
    "RMSNorm": "live: models build it",
}
