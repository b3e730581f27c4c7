"""What is said of the model."""

from __future__ import annotations

from hookserve.engine.vllm_config import ModelConfig

__all__ = ["ModelConfig"]

__surface__ = {
    "ModelConfig": "live: models are built with it",
}
