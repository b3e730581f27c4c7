"""A plugin's model runs under its plugin's name: what it logs, and what it crashes, is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookserve.engine import LLM, SamplingParams
from hookserve.hookspecs import ModelEntry, hookimpl, running
from hookserve.plugins_builtin.llama import LlamaForCausalLM

SEEN: dict[str, set[str]] = {}


def see(what: str) -> None:
    plugin = running()
    SEEN.setdefault(what, set()).add("nobody" if plugin is None else plugin.identity)


class WatchedLlama(LlamaForCausalLM):
    def __init__(self, **arguments: Any) -> None:
        see("construction")
        super().__init__(**arguments)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        see("forward")
        return super().forward(*args, **kwargs)

    def compute_logits(self, hidden_states: Any) -> Any:
        see("logits")
        return super().compute_logits(hidden_states)


class Watcher:
    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry("LlamaForCausalLM", WatchedLlama)


def test_the_code_of_a_model_is_its_plugins(tiny_llama: Path) -> None:
    SEEN.clear()
    llm = LLM(str(tiny_llama), plugins=[Watcher()])
    try:
        llm.generate([[1, 2]], SamplingParams(max_tokens=1))
    finally:
        llm.shutdown()
    own = {"object:Watcher"}
    assert dict(SEEN) == {"construction": own, "forward": own, "logits": own}
