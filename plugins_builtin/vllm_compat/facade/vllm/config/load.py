"""What is said of loading weights."""

from __future__ import annotations

from hookserve.engine.vllm_config import LoadConfig

__all__ = ["LoadConfig"]

__surface__ = {
    "LoadConfig": "live: model loaders are built with it",
}
