"""What the built-in language models have in common: an inner model and a head over the vocabulary.

The inner model is the architecture's own business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from hookserve.engine.vllm_config import VllmConfig
from hookserve.engine.weights import (
    AutoWeightsLoader,
    IntermediateTensors,
    WeightsMapper,
    maybe_prefix,
)
from hookserve.ops.logits_processor import LogitsProcessor
from hookserve.ops.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding


class Wrapper(nn.Module):
    """Base: computes what the module under the name ``inner`` does."""

    inner: ClassVar[str]

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` to ``[tokens, hidden]``."""
        return getattr(self, self.inner).embed_input_ids(input_ids)  # type: ignore[no-any-return]

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[tokens]`` ids and positions to hidden states ``[tokens, hidden]``."""
        return getattr(self, self.inner)(  # type: ignore[no-any-return]
            input_ids, positions, intermediate_tensors, inputs_embeds
        )


class CausalLM(Wrapper):
    """Base: a subclass builds ``self.model``, then calls ``_init_head``."""

    inner = "model"
    hf_to_vllm_mapper = WeightsMapper()
    """From the checkpoint's names to the model's; what the inner model maps itself is left out."""
    embedding_modules: dict[str, str] = {  # noqa: RUF012 - read by name, as plain data
        "embed_tokens": "input_embeddings",
        "lm_head": "output_embeddings",
    }

    is_tied_by_default = False
    """Whether the head shares the embedding where ``tie_word_embeddings`` is not stated."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__()
        self.config: Any = vllm_config.model_config.hf_text_config
        self.quant_config = vllm_config.quant_config
        self.model: Any

    def _init_head(self, embed_tokens: VocabParallelEmbedding, prefix: str) -> None:
        """Set ``lm_head``, tied to the embedding where the configuration says so, and
        ``logits_processor``."""
        self.lm_head: Any = ParallelLMHead(
            self.config.vocab_size,
            embed_tokens.embedding_dim,
            quant_config=self.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.is_tied = bool(getattr(self.config, "tie_word_embeddings", self.is_tied_by_default))
        if self.is_tied:
            self.lm_head = self.lm_head.tie_weights(embed_tokens)
        self.logits_processor = self._init_logits_processor(self.config)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def _init_logits_processor(self, config: Any) -> LogitsProcessor:
        return LogitsProcessor(config.vocab_size, scale=getattr(config, "logit_scale", 1.0))

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """``[rows, hidden]`` to ``[rows, vocabulary]``, in the model's dtype."""
        return self.logits_processor(self.lm_head, hidden_states)  # type: ignore[no-any-return]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint's tensors; returns the names of the parameters that it filled."""
        mapper = self.hf_to_vllm_mapper
        if self.is_tied:
            # A tied head has no weight of its own, though some checkpoints store the copy.
            mapper |= WeightsMapper(orig_to_new_prefix={"lm_head.": None})
        return AutoWeightsLoader(self).load_weights(weights, mapper=mapper)
