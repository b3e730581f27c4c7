"""The Qwen2 and Qwen2.5 architecture: Llama's, with biases on queries, keys and values, and from
``max_window_layers`` on a sliding window where ``use_sliding_window`` says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP, LlamaModel


class Qwen2MLP(LlamaMLP):
    pass


class Qwen2Attention(LlamaAttention):
    config_defaults: ClassVar[Mapping[str, Any]] = {
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }


class Qwen2DecoderLayer(LlamaDecoderLayer):
    attention_class = Qwen2Attention
    mlp_class = Qwen2MLP

    def attention_biases(self, config: Any) -> tuple[bool, bool]:
        return True, False  # the architecture's, not the configuration's


class Qwen2Model(LlamaModel):
    layer_class = Qwen2DecoderLayer


class Qwen2ForCausalLM(LlamaForCausalLM):
    """``Qwen2Model`` and its head."""

    model_class = Qwen2Model
