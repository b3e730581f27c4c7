"""The dense Qwen3 architecture: Llama's, with each head of queries and keys normalised before it
is rotated."""

from __future__ import annotations

from typing import Any

import torch

from hookserve.ops.layernorm import RMSNorm

from .llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP, LlamaModel
from .qwen2 import Qwen2Attention


class Qwen3MLP(LlamaMLP):
    pass


class Qwen3Attention(LlamaAttention):
    """``LlamaAttention`` with ``q_norm`` and ``k_norm``, each over one head."""

    config_defaults = Qwen2Attention.config_defaults

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split_with_sizes((self.q_size, self.kv_size, self.kv_size), dim=-1)
        q = self.q_norm(q.unflatten(-1, (self.num_heads, self.head_dim))).flatten(1)
        k = self.k_norm(k.unflatten(-1, (self.num_kv_heads, self.head_dim))).flatten(1)
        q, k = self.rotary_emb(positions, q, k)
        output, _ = self.o_proj(self.attn(q, k, v))
        return output  # type: ignore[no-any-return]


class Qwen3DecoderLayer(LlamaDecoderLayer):
    attention_class = Qwen3Attention
    mlp_class = Qwen3MLP


class Qwen3Model(LlamaModel):
    layer_class = Qwen3DecoderLayer


class Qwen3ForCausalLM(LlamaForCausalLM):
    """``Qwen3Model`` and its head."""

    model_class = Qwen3Model
