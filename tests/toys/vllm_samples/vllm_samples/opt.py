"""OPT that never says anything but the first token of its vocabulary."""

from __future__ import annotations

import torch
from vllm.model_executor.models.opt import OPTForCausalLM


class FirstTokenOPTForCausalLM(OPTForCausalLM):
    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = super().compute_logits(hidden_states)
        if logits is not None:
            logits.fill_(-1e4)
            logits[:, 0] = 0.0
        return logits
