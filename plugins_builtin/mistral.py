"""The Mistral architecture: Llama's computation, within a sliding window where the checkpoint
states one."""

from __future__ import annotations

from .llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP, LlamaModel


class MistralMLP(LlamaMLP):
    pass


class MistralAttention(LlamaAttention):
    pass


class MistralDecoderLayer(LlamaDecoderLayer):
    attention_class = MistralAttention
    mlp_class = MistralMLP


class MistralModel(LlamaModel):
    layer_class = MistralDecoderLayer


class MistralForCausalLM(LlamaForCausalLM):
    """``MistralModel`` and its head."""

    model_class = MistralModel
