"""What is said of the KV cache."""

from __future__ import annotations

from hookserve.engine.vllm_config import CacheConfig

__all__ = ["CacheConfig"]

__surface__ = {
    "CacheConfig": "live: the engine sizes the KV cache by it",
}
