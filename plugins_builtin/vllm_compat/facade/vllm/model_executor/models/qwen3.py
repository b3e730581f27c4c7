"""The dense Qwen3 architecture."""

from __future__ import annotations

from hookserve.plugins_builtin.qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3ForCausalLM,
    Qwen3MLP,
    Qwen3Model,
)

__all__ = ["Qwen3Attention", "Qwen3DecoderLayer", "Qwen3ForCausalLM", "Qwen3MLP", "Qwen3Model"]

__surface__ = {
    "Qwen3Attention": "live: a part of the model",
    "Qwen3DecoderLayer": "live: a part of the model",
    "Qwen3ForCausalLM": "live: registered for the architecture of that name",
    "Qwen3MLP": "live: a part of the model",
    "Qwen3Model": "live: a part of the model",
}
