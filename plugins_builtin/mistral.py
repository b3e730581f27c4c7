"""The Mistral architecture: Llama's computation, within a sliding window unless the checkpoint has
``null`` for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP, LlamaModel


class MistralMLP(LlamaMLP):
    pass


class MistralAttention(LlamaAttention):
    config_defaults: ClassVar[Mapping[str, Any]] = {"sliding_window": 4096}


class MistralDecoderLayer(LlamaDecoderLayer):
    attention_class = MistralAttention
    mlp_class = MistralMLP


class MistralModel(LlamaModel):
    layer_class = MistralDecoderLayer


class MistralForCausalLM(LlamaForCausalLM):
    """``MistralModel`` and its head."""

    model_class = MistralModel
