"""A Llama that only ever says ``A``: what it says shows that it ran."""

from __future__ import annotations

from typing import Any

from hookserve.plugins_builtin.llama import LlamaForCausalLM

from .trace import note

note("import", module=__name__)

FAVOURITE = 32
"""The token of ``A`` in the tests' byte tokenizer."""


class ToyForCausalLM(LlamaForCausalLM):
    def compute_logits(self, hidden_states: Any) -> Any:
        logits = super().compute_logits(hidden_states)
        logits[..., FAVOURITE] = 1e4
        return logits
