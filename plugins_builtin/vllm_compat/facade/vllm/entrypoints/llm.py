"""``LLM``: prompts in, finished outputs out."""

from __future__ import annotations

from hookserve.engine.llm import LLM

__all__ = ["LLM"]

__surface__ = {
    "LLM": "live: generate, chat and collective_rpc; encode, embed, classify and score it has not, "
    "as no pooling model is served",
}
