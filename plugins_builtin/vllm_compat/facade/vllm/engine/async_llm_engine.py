"""The older path of ``vllm.v1.engine.async_llm``."""

from __future__ import annotations

from hookserve.engine.async_llm import AsyncLLM as AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]

__surface__ = {"AsyncLLMEngine": "live: the older name of AsyncLLM"}
