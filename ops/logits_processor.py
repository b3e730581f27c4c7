"""From hidden states to logits over the vocabulary. Sampling is the engine's."""

from __future__ import annotations

import torch

from .custom_op import PluggableLayer
from .vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding


@PluggableLayer.register("logits_processor")
class LogitsProcessor(PluggableLayer):
    """Applies the head, then the soft cap and the scale, and drops the padded vocabulary."""

    def __init__(
        self,
        vocab_size: int,
        org_vocab_size: int | None = None,
        scale: float = 1.0,
        logits_as_input: bool = False,
        soft_cap: float | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.org_vocab_size = org_vocab_size or vocab_size
        self.scale = scale
        self.logits_as_input = logits_as_input
        self.soft_cap = soft_cap

    def forward(
        self,
        lm_head: VocabParallelEmbedding,
        hidden_states: torch.Tensor,
        embedding_bias: torch.Tensor | None = None,
        skip_gather: bool = False,
    ) -> torch.Tensor:
        """``hidden_states: [rows, hidden]`` (or logits, with ``logits_as_input``) to
        ``[rows, org_vocab_size]``.

        Args:
            skip_gather: give this rank's part of the padded vocabulary alone.
        """
        if self.logits_as_input:
            logits = hidden_states
        elif skip_gather:  # only then by name: a subclass may know nothing of it
            logits = self._get_logits(hidden_states, lm_head, embedding_bias, skip_gather=True)
        else:
            logits = self._get_logits(hidden_states, lm_head, embedding_bias)
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits if self.scale == 1.0 else logits * self.scale

    def _get_logits(
        self,
        hidden_states: torch.Tensor,
        lm_head: VocabParallelEmbedding,
        embedding_bias: torch.Tensor | None,
        skip_gather: bool = False,
    ) -> torch.Tensor:
        if embedding_bias is None and isinstance(lm_head, ParallelLMHead):
            embedding_bias = lm_head.bias
        logits: torch.Tensor = lm_head.quant_method.apply(lm_head, hidden_states, embedding_bias)
        if skip_gather:
            return logits
        logits = lm_head.tp_group.all_gather(logits)
        return logits[..., : self.org_vocab_size]
