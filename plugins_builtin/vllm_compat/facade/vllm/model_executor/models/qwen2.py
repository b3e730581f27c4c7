"""The Qwen2 architecture."""

from __future__ import annotations

from hookserve.plugins_builtin.qwen2 import (
    Qwen2Attention,
    Qwen2DecoderLayer,
    Qwen2ForCausalLM,
    Qwen2MLP,
    Qwen2Model,
)

__all__ = ["Qwen2Attention", "Qwen2DecoderLayer", "Qwen2ForCausalLM", "Qwen2MLP", "Qwen2Model"]

__surface__ = {
    "Qwen2Attention": "live: a part of the model",
    "Qwen2DecoderLayer": "live: a part of the model",
    "Qwen2ForCausalLM": "live: registered for the architecture of that name",
    "Qwen2MLP": "live: a part of the model",
    "Qwen2Model": "live: a part of the model",
}
