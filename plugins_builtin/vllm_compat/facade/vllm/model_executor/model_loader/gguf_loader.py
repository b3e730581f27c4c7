"""The loader of GGUF files; an older path."""

from __future__ import annotations

from hookserve.engine.model_loader import GGUFModelLoader

__all__ = ["GGUFModelLoader"]

__surface__ = {
    "GGUFModelLoader": "live: the loader of GGUF files, dequantized to the model's dtype",
}
