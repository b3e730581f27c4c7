"""What is said of grammars."""

from __future__ import annotations

from hookserve.engine.vllm_config import StructuredOutputsConfig

__all__ = ["StructuredOutputsConfig"]

__surface__ = {
    "StructuredOutputsConfig": "live: grammar backends are chosen by it",
}
