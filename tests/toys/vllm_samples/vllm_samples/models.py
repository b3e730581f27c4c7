"""Registers two models by their paths."""

from __future__ import annotations

from vllm import ModelRegistry

ARCHITECTURES = {
    "FirstTokenOPTForCausalLM": "vllm_samples.opt:FirstTokenOPTForCausalLM",
    "SampleGemma2Embedding": "vllm_samples.gemma2_embedding:SampleGemma2Embedding",
}


def register() -> None:
    for architecture, path in ARCHITECTURES.items():
        if architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(architecture, path)
