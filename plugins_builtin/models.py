"""Built-in plugin: the model architectures that are served without any plugin."""

from __future__ import annotations

from hookserve.hookspecs import ModelEntry, hookimpl

MODULES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "OPTForCausalLM": "opt",
}
"""The class that implements an architecture has its name; each lies in a file of its own, which is
imported only where a checkpoint asks for it."""


@hookimpl
def register_model() -> list[ModelEntry]:
    return [
        ModelEntry(name, f"hookserve.plugins_builtin.{module}:{name}")
        for name, module in MODULES.items()
    ]
