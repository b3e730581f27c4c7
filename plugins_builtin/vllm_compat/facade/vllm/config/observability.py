"""What is said of statistics."""

from __future__ import annotations

from hookserve.engine.vllm_config import ObservabilityConfig

__all__ = ["ObservabilityConfig"]

__surface__ = {
    "ObservabilityConfig": "live: says whether statistics are collected",
}
