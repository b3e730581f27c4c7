"""The Gemma 2 architecture."""

from __future__ import annotations

from hookserve.plugins_builtin.gemma2 import (
    Gemma2Attention,
    Gemma2DecoderLayer,
    Gemma2ForCausalLM,
    Gemma2MLP,
    Gemma2Model,
)

__all__ = ["Gemma2Attention", "Gemma2DecoderLayer", "Gemma2ForCausalLM", "Gemma2MLP", "Gemma2Model"]

__surface__ = {
    "Gemma2Attention": "live: a part of the model",
    "Gemma2DecoderLayer": "live: a part of the model",
    "Gemma2ForCausalLM": "live: registered for the architecture of that name",
    "Gemma2MLP": "live: a part of the model",
    "Gemma2Model": "live: a part of the model",
}
