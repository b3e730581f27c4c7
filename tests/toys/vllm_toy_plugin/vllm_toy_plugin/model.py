"""Llama under another name."""

from __future__ import annotations

from vllm.model_executor.models.llama import LlamaForCausalLM

from . import note

note("import", module=__name__)


class ToyLlamaForCausalLM(LlamaForCausalLM):
    pass
