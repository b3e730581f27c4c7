"""The registry of models."""

from .registry import ModelRegistry

__all__ = ["ModelRegistry"]

__surface__ = {
    "ModelRegistry": "live: fills the registry of models",
}
