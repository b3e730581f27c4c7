"""``LLMEngine``: scheduler, worker and text in one process."""

from __future__ import annotations

from hookserve.engine.llm_engine import LLMEngine

__all__ = ["LLMEngine"]

__surface__ = {"LLMEngine": "live: what LLM runs on"}
