"""The loader of safetensors files."""

from __future__ import annotations

from hookserve.engine.model_loader import DefaultModelLoader

__all__ = ["DefaultModelLoader"]

__surface__ = {
    "DefaultModelLoader": (
        "live: the loader of safetensors files; a subclass changes get_all_weights, "
        "load_weights, create_model or _prepare_weights(model_name_or_path), which gives the "
        "folder and its files"
    ),
}
