"""The Gemma 2 architecture: Llama's frame with four norms a layer, soft caps on attention's scores
and on the logits, a window in every second layer, and embeddings scaled by the root of their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from hookserve.engine.vllm_config import VllmConfig
from hookserve.engine.weights import extract_layer_index
from hookserve.ops.layernorm import GemmaRMSNorm
from hookserve.ops.logits_processor import LogitsProcessor

from .llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP, LlamaModel

FINAL_SOFT_CAP = 30.0
"""Where a configuration does not state ``final_logit_softcapping``."""


class Gemma2MLP(LlamaMLP):
    pass


class Gemma2Attention(LlamaAttention):
    """Scores are scaled by ``query_pre_attn_scalar`` and kept within ``attn_logit_softcapping``."""

    config_defaults: ClassVar[Mapping[str, Any]] = {
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
    }

    def score_scale(self, config: Any) -> float:
        return float(config.query_pre_attn_scalar**-0.5)

    def attention_options(self, config: Any, prefix: str) -> dict[str, Any]:
        options = super().attention_options(config, prefix)
        if not getattr(config, "layer_types", None) and extract_layer_index(prefix) % 2:
            options["per_layer_sliding_window"] = None
        key = "attn_logit_softcapping"
        options["logits_soft_cap"] = _as_float(getattr(config, key, self.config_defaults[key]))
        return options


class Gemma2DecoderLayer(LlamaDecoderLayer):
    """Attention and feed-forward, each normalised before and after, then added."""

    attention_class = Gemma2Attention
    mlp_class = Gemma2MLP
    norm_class = GemmaRMSNorm

    def __init__(
        self,
        vllm_config: VllmConfig,
        prefix: str = "",
        config: Any = None,
        attn_layer_type: Any = None,
    ) -> None:
        config = config or vllm_config.model_config.hf_text_config
        super().__init__(vllm_config, prefix, config, attn_layer_type)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_feedforward_layernorm = self.norm_class(size, eps=eps)
        self.post_feedforward_layernorm = self.norm_class(size, eps=eps)

    def activation(self, config: Any) -> str:
        return getattr(config, "hidden_activation", None) or "gelu_pytorch_tanh"

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_states, residual = self._attend(positions, hidden_states, residual)
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, residual = self.pre_feedforward_layernorm(hidden_states, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden_states)), residual


class Gemma2Model(LlamaModel):
    """``LlamaModel`` with scaled embeddings."""

    layer_class = Gemma2DecoderLayer
    norm_class = GemmaRMSNorm

    def __init__(
        self, *, vllm_config: VllmConfig, prefix: str = "", layer_type: Any = None
    ) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)
        self.normalizer: torch.Tensor
        # In the model's dtype, as it was trained: in bfloat16 the root is rounded.
        root = torch.tensor(math.sqrt(self.config.hidden_size), dtype=torch.get_default_dtype())
        self.register_buffer("normalizer", root, persistent=False)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().embed_input_ids(input_ids) * self.normalizer


class Gemma2ForCausalLM(LlamaForCausalLM):
    """``Gemma2Model`` and its head, tied unless the configuration says otherwise."""

    hf_to_vllm_mapper = LlamaModel.hf_to_vllm_mapper
    model_class = Gemma2Model
    is_tied_by_default = True

    def _init_logits_processor(self, config: Any) -> LogitsProcessor:
        soft_cap = getattr(config, "final_logit_softcapping", FINAL_SOFT_CAP)
        return LogitsProcessor(config.vocab_size, soft_cap=_as_float(soft_cap))


def _as_float(value: float | None) -> float | None:
    """A whole number in a configuration may be larger than any that a tensor takes."""
    return None if value is None else float(value)
