"""An embedding model around the layers of Gemma 2; whatever it is told, it embeds as zeros."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import DispatchPooler
from vllm.model_executor.models.gemma2 import Gemma2ForCausalLM, Gemma2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors


class SampleGemma2Embedding(nn.Module):
    is_pooling_model = True
    hf_to_vllm_mapper = Gemma2ForCausalLM.hf_to_vllm_mapper | WeightsMapper(
        orig_to_new_prefix={"lm_head.": None}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.model = Gemma2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.pooler = DispatchPooler.for_embedding(vllm_config.model_config.pooler_config)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        hidden = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        return hidden if isinstance(hidden, IntermediateTensors) else torch.zeros_like(hidden)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
