"""The OPT architecture."""

from __future__ import annotations

from hookserve.plugins_builtin.opt import (
    OPTAttention,
    OPTDecoder,
    OPTDecoderLayer,
    OPTForCausalLM,
    OPTLearnedPositionalEmbedding,
    OPTModel,
)

__all__ = [
    "OPTAttention",
    "OPTDecoder",
    "OPTDecoderLayer",
    "OPTForCausalLM",
    "OPTLearnedPositionalEmbedding",
    "OPTModel",
]

__surface__ = {
    "OPTAttention": "live: a part of the model",
    "OPTDecoder": "live: a part of the model",
    "OPTDecoderLayer": "live: a part of the model",
    "OPTForCausalLM": "live: registered for the architecture of that name",
    "OPTLearnedPositionalEmbedding": "live: a part of the model",
    "OPTModel": "live: a part of the model",
}
