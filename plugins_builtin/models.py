"""Built-in plugin: the model architectures that are served without any plugin."""

from __future__ import annotations

from hookserve.hookspecs import ModelEntry, hookimpl

LLAMA = "hookserve.plugins_builtin.llama:LlamaForCausalLM"


@hookimpl
def register_model() -> list[ModelEntry]:
    # Mistral's models are Llama's computation under another name; where they limit attention to
    # a sliding window shorter than the context, the class refuses.
    return [ModelEntry("LlamaForCausalLM", LLAMA), ModelEntry("MistralForCausalLM", LLAMA)]
