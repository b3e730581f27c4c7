"""Models as packages for vLLM write them: from scratch of the host's layers, and from the host's
own models, against the built-in Llama."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from hookserve.engine.llm import LLM
from hookserve.engine.model_interfaces import supports_lora, supports_pp
from hookserve.engine.model_registry import contract_fault
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import ModelEntry, hookimpl
from hookserve.ops.context import TensorParallelGroup
from hookserve.ops.paged_attention import PagedAttentionBackend
from step_runner import StepRunner, load_model, make_vllm_config
from thread_ranks import run_ranks
from tiny_llama import write_tiny_llama

TOKENS = [5, 77, 130, 201, 9, 41, 250, 3, 3, 88, 17, 120]


@pytest.fixture
def toy(vllm_facade: None) -> Iterator[ModuleType]:
    """A model written from scratch."""
    yield importlib.import_module("vllm_style_llama")
    del sys.modules["vllm_style_llama"]


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    written = write_tiny_llama(tmp_path / "model")
    config = json.loads((written / "config.json").read_text())
    config["tie_word_embeddings"] = request.param
    (written / "config.json").write_text(json.dumps(config))
    return written


def logits_of(folder: Path, model_class: Any = None) -> torch.Tensor:
    config = make_vllm_config(folder, block_size=4)
    model = load_model(config) if model_class is None else load_model(config, model_class)
    runner = StepRunner(config, model)
    blocks = [3, 9, 4, 7]
    first = runner.step([(TOKENS[:10], 0, blocks)])
    second = runner.step([(TOKENS[10:11], 10, blocks)])
    return torch.cat([first, second, runner.step([(TOKENS[11:], 11, blocks)])])


@pytest.mark.checklist(43)
def test_a_model_from_scratch_computes_what_the_built_in_one_does(
    toy: ModuleType, folder: Path
) -> None:
    assert contract_fault(toy.ToyForCausalLM) is None
    assert supports_lora(toy.ToyForCausalLM) and supports_pp(toy.ToyForCausalLM)
    assert torch.equal(logits_of(folder, toy.ToyForCausalLM), logits_of(folder))


def test_a_model_from_scratch_is_split_over_two_ranks(toy: ModuleType, folder: Path) -> None:
    def run(group: TensorParallelGroup) -> torch.Tensor:
        return logits_of(folder, toy.ToyForCausalLM)

    for logits in run_ranks(2, run):
        torch.testing.assert_close(logits, logits_of(folder), rtol=0, atol=1e-5)


@pytest.mark.checklist(42, 43)
def test_a_subclass_that_changes_nothing_computes_the_same(vllm_facade: None, folder: Path) -> None:
    llama = importlib.import_module("vllm.model_executor.models.llama")

    class Mine(llama.LlamaForCausalLM):  # type: ignore[name-defined,misc]
        pass

    assert torch.equal(logits_of(folder, Mine), logits_of(folder))


@pytest.mark.checklist(43)
def test_a_layer_of_ones_own_is_built_by_layer_type(vllm_facade: None, folder: Path) -> None:
    llama = importlib.import_module("vllm.model_executor.models.llama")

    class Doubling(llama.LlamaDecoderLayer):  # type: ignore[name-defined,misc]
        def forward(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
            hidden_states, residual = super().forward(*args)
            return hidden_states * 2, residual

    class Mine(llama.LlamaForCausalLM):  # type: ignore[name-defined,misc]
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=Doubling)

    mine, plain = logits_of(folder, Mine), logits_of(folder)
    assert mine.shape == plain.shape
    assert not torch.allclose(mine, plain, atol=1e-3)


@pytest.mark.checklist(40)
def test_logits_that_a_subclass_computes_are_those_that_count(
    vllm_facade: None, folder: Path
) -> None:
    llama = importlib.import_module("vllm.model_executor.models.llama")

    class Mine(llama.LlamaForCausalLM):  # type: ignore[name-defined,misc]
        def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = super().compute_logits(hidden_states)
            logits.zero_()
            logits[:, 0] += 1.0
            return logits

    assert logits_of(folder, Mine).argmax(-1).unique().tolist() == [0]


def test_a_layer_of_a_plugins_own_has_a_cache_where_it_asks_for_one(
    vllm_facade: None, tmp_path: Path
) -> None:
    layers = importlib.import_module("vllm.model_executor.layers.attention_layer_base")
    attention = importlib.import_module("vllm.model_executor.layers.attention")
    llama = importlib.import_module("vllm.model_executor.models.llama")
    specs = importlib.import_module("vllm.v1.kv_cache_interface")

    class Own(nn.Module, layers.AttentionLayerBase):  # type: ignore[name-defined,misc]
        def __init__(self, vllm_config: Any, prefix: str, keeps: bool) -> None:
            super().__init__()
            self.layer_name, self.num_kv_heads, self.head_size = prefix, 1, 4
            self.keeps = keeps
            vllm_config.compilation_config.static_forward_context[prefix] = self

        def get_attn_backend(self) -> Any:
            return PagedAttentionBackend

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            size = vllm_config.cache_config.block_size
            return specs.FullAttentionSpec(size, 1, 4, torch.float32) if self.keeps else None

    class Mine(llama.LlamaForCausalLM):  # type: ignore[name-defined,misc]
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.kept = Own(vllm_config, "kept", True)
            self.bare = Own(vllm_config, "bare", False)

    class Registers:
        @hookimpl
        def register_model(self) -> ModelEntry:
            return ModelEntry("LlamaForCausalLM", Mine)

    folder = write_tiny_llama(tmp_path / "model")
    with LLM(str(folder), plugins=[Registers()], kv_cache_memory_bytes=1 << 20) as llm:
        (model,) = llm.apply_model(lambda model: model)
        llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=2))
    blocks = model.kept.kv_cache.shape[0]
    assert model.kept.kv_cache.shape == (blocks, 2, 1, 16, 4)
    assert blocks == model.model.layers[0].self_attn.attn.kv_cache.shape[0]
    assert not hasattr(model.bare, "kv_cache")
    assert isinstance(model.model.layers[0].self_attn.attn, attention.Attention)
