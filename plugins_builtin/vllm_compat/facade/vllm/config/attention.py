"""What is said of attention."""

from __future__ import annotations

from hookserve.engine.vllm_config import AttentionConfig

__all__ = ["AttentionConfig"]

__surface__ = {
    "AttentionConfig": "live: the worker chooses each layer's attention by it",
}
