"""What the tree of the configuration answers to plugins that ask in the ecosystem's words."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.compilation_section import CUDAGraphMode
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.vllm_config import (
    CompilationConfig,
    CompilationMode,
    HfConfig,
    VllmConfig,
    get_current_vllm_config_or_none,
    get_layers_from_vllm_config,
    set_current_vllm_config,
)
from hookserve.hookspecs import PluginSettings, bootstrap


@pytest.fixture
def tree(tiny_llama: Path) -> VllmConfig:
    return EngineArgs(model=str(tiny_llama), max_model_len=64).create_engine_config()


def test_sizes_of_the_model_and_of_what_one_rank_has(tree: VllmConfig) -> None:
    model, parallel = tree.model_config, tree.parallel_config
    text = model.hf_text_config
    parallel.tensor_parallel_size = 2
    assert model.get_total_num_attention_heads() == text.num_attention_heads
    assert model.get_num_attention_heads(parallel) * 2 == text.num_attention_heads
    assert model.get_layers_start_end_indices(parallel) == (0, text.num_hidden_layers)
    assert model.get_total_num_hidden_layers() == text.num_hidden_layers
    assert model.get_inputs_embeds_size() == model.get_hidden_size() == text.hidden_size
    assert (parallel.world_size, parallel.local_world_size) == (2, 2)
    assert parallel.world_size_across_dp == 2 and not parallel.use_ray
    assert tree.scheduler_config.max_model_len == model.max_model_len == 64
    assert tree.scheduler_config.chunked_prefill_enabled is True


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, {"is_moe": False, "use_mla": False, "uses_mrope": False}),
        ({"n_routed_experts": 8}, {"is_moe": True}),
        ({"kv_lora_rank": 16}, {"is_deepseek_mla": True, "use_mla": True}),
        ({"rope_scaling": {"mrope_section": [1]}}, {"uses_mrope": True}),
        ({"is_encoder_decoder": True}, {"is_encoder_decoder": True}),
    ],
)
def test_what_the_checkpoint_says_of_its_kind(
    tree: VllmConfig, values: dict[str, Any], told: dict[str, bool]
) -> None:
    own = tree.model_config.hf_config.to_dict()
    given = tree.with_hf_config(HfConfig({**own, **values}), architectures=["Mine"])
    assert {name: getattr(given.model_config, name) for name in told} == told
    assert given.model_config.architecture == "Mine"
    assert given.cache_config is tree.cache_config
    assert tree.model_config.architecture == "LlamaForCausalLM"
    assert not given.model_config.is_multimodal_model
    with pytest.raises(ValueError, match="only text is served"):
        given.model_config.get_multimodal_config()


def test_defaults_of_requests_come_from_the_generation_config(tiny_llama: Path) -> None:
    changes = {"temperature": 0.5}
    args = EngineArgs(model=str(tiny_llama), override_generation_config=changes)
    model = args.create_model_config()
    assert model.get_diff_sampling_param() == {"temperature": 0.5}
    assert model.try_get_generation_config()["temperature"] == 0.5


def test_the_memory_of_the_cache_refuses_to_be_set_as_a_part(tree: VllmConfig) -> None:
    assert tree.cache_config.gpu_memory_utilization == 0.5
    with pytest.raises(AttributeError, match=r"to 0\.9: .* set kv_cache_memory_bytes"):
        tree.cache_config.gpu_memory_utilization = 0.9


def test_modes_are_taken_by_name_and_number() -> None:
    config = CompilationConfig(mode=3, cudagraph_mode="FULL_AND_PIECEWISE")  # type: ignore[arg-type]
    assert config.mode is config.level is CompilationMode.VLLM_COMPILE
    config.level = 0  # type: ignore[assignment]
    assert config.mode is CompilationMode.NONE
    graphs = config.cudagraph_mode
    assert (graphs.decode_mode(), graphs.mixed_mode()) == (
        CUDAGraphMode.FULL,
        CUDAGraphMode.PIECEWISE,
    )
    assert graphs.has_full_cudagraphs() and graphs.requires_piecewise_compilation()
    assert graphs.separate_routine() and not CUDAGraphMode.NONE.has_full_cudagraphs()
    with pytest.raises(KeyError):
        config.cudagraph_mode = "SOMETIMES"  # type: ignore[assignment]


def test_a_tree_made_by_hand_has_defaults_and_finds_layers() -> None:
    config = VllmConfig()
    layers: dict[str, Any] = {"a": 1, "b": "x", "c": 2}
    config.compilation_config.static_forward_context.update(layers)
    assert get_layers_from_vllm_config(config, int) == {"a": 1, "c": 2}
    assert get_layers_from_vllm_config(config, int, ["b", "c"]) == {"c": 2}
    assert get_current_vllm_config_or_none() is None
    with set_current_vllm_config(config):
        assert get_current_vllm_config_or_none() is config
    assert config.compute_hash() == config.compute_hash() != VllmConfig().compute_hash()


def test_copies_are_equal_until_one_is_changed(tree: VllmConfig) -> None:
    for other in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert other == tree and other.compute_hash() == tree.compute_hash()
        other.model_config.hf_config.hidden_size = 1
        assert other != tree


def test_a_copy_shares_the_workers_own_parts_and_another_process_has_none(tree: VllmConfig) -> None:
    part = threading.Lock()  # nobody can copy or pickle it
    tree.compilation_config.ops = part
    tree.compilation_config.static_forward_context["layer"] = part
    for copied in (copy.deepcopy(tree).compilation_config, copy.copy(tree.compilation_config)):
        assert copied.ops is part and copied.static_forward_context == {"layer": part}
        copied.custom_ops = ["none"]
        assert tree.compilation_config.custom_ops == []
    apart = copy.deepcopy(tree).compilation_config
    apart.static_forward_context.clear()
    apart.custom_ops.append("none")
    assert "layer" in tree.compilation_config.static_forward_context
    assert tree.compilation_config.custom_ops == []
    sent = pickle.loads(pickle.dumps(tree)).compilation_config
    assert (sent.ops, sent.static_forward_context) == (None, {})
    assert tree.compilation_config.ops is part


def test_the_scheduler_is_named_or_a_class() -> None:
    host = bootstrap(["engine"], PluginSettings(allow=()))
    try:
        config = VllmConfig().scheduler_config
        assert config.get_scheduler_cls() is Scheduler
        config.scheduler_cls = int  # type: ignore[assignment]
        assert config.get_scheduler_cls() is int
    finally:
        host.close()
