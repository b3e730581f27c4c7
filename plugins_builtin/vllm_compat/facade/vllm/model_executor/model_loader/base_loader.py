"""The base of model loaders."""

from __future__ import annotations

from hookserve.engine.model_loader import BaseModelLoader

__all__ = ["BaseModelLoader"]

__surface__ = {
    "BaseModelLoader": "live: base of the loaders that workers use",
}
