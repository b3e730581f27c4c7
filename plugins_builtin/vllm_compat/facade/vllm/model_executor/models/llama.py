"""The Llama architecture."""

from __future__ import annotations

from hookserve.plugins_builtin.llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
    LlamaModel,
)

__all__ = ["LlamaAttention", "LlamaDecoderLayer", "LlamaForCausalLM", "LlamaMLP", "LlamaModel"]

__surface__ = {
    "LlamaAttention": "live: a part of the model",
    "LlamaDecoderLayer": "live: a part of the model",
    "LlamaForCausalLM": "live: registered for the architecture of that name",
    "LlamaMLP": "live: a part of the model",
    "LlamaModel": "live: a part of the model",
    "LlamaBidirectionalModel": "refused: attention is causal here",
}
