"""``LLM``: prompts in, finished outputs out."""

from __future__ import annotations

from hookserve.engine.llm import LLM

__all__ = ["LLM"]

__surface__ = {
    "LLM": "live: generate, chat and collective_rpc; encode, embed, classify, score, beam_search, "
    "sleep, wake_up and others for which this engine has no use raise NotServedError and say why",
}
