"""The Mistral architecture."""

from __future__ import annotations

from hookserve.plugins_builtin.mistral import (
    MistralAttention,
    MistralDecoderLayer,
    MistralForCausalLM,
    MistralMLP,
    MistralModel,
)

__all__ = [
    "MistralAttention",
    "MistralDecoderLayer",
    "MistralForCausalLM",
    "MistralMLP",
    "MistralModel",
]

__surface__ = {
    "MistralAttention": "live: a part of the model",
    "MistralDecoderLayer": "live: a part of the model",
    "MistralForCausalLM": "live: registered for the architecture of that name",
    "MistralMLP": "live: a part of the model",
    "MistralModel": "live: a part of the model",
}
