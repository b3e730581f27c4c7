"""What model code of packages for vLLM calls besides layers: weights, ranks, context, sizes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ModelFileError
from hookserve.engine.vllm_config import HfConfig
from hookserve.hookspecs import Host, PluginSettings, bootstrap
from hookserve.ops.context import TensorParallelGroup
from plugin_folder import install_plugin
from step_runner import load_model, make_vllm_config
from thread_ranks import run_ranks
from tiny_llama import write_tiny_llama

pytestmark = pytest.mark.usefixtures("vllm_facade")


def module(name: str) -> Any:
    return importlib.import_module(f"vllm.{name}")


def test_what_ranks_send_each_other_leaves_what_they_gave_alone() -> None:
    distributed = module("distributed")

    def run(group: TensorParallelGroup) -> dict[str, Any]:
        given = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (group.rank + 1)
        answers = {
            "rank": distributed.get_tensor_model_parallel_rank(),
            "size": distributed.get_tensor_model_parallel_world_size(),
            "sum": distributed.tensor_model_parallel_all_reduce(given).tolist(),
            "rows": distributed.tensor_model_parallel_all_gather(given, dim=0).shape,
            "columns": distributed.tensor_model_parallel_all_gather(given).shape,
            "scattered": distributed.tensor_model_parallel_reduce_scatter(given).tolist(),
        }
        gathered = distributed.tensor_model_parallel_gather(given, dst=1)
        assert (gathered is None) == (group.rank == 0)
        with pytest.raises(ValueError, match="3 is not a multiple of 2"):
            distributed.tensor_model_parallel_reduce_scatter(torch.ones(3))
        assert given[0, 0] == group.rank + 1
        return answers

    first, second = run_ranks(2, run)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["size"] == second["size"] == 2
    assert first["sum"] == second["sum"] == [[3.0, 6.0], [9.0, 12.0]]
    assert first["rows"] == (4, 2) and first["columns"] == (2, 4)
    assert (first["scattered"], second["scattered"]) == ([[3.0], [9.0]], [[6.0], [12.0]])


def test_ranks_that_met_otherwise_than_asked_are_an_error() -> None:
    distributed = module("distributed")

    def run(group: TensorParallelGroup) -> None:
        distributed.init_distributed_environment(2, group.rank, "env://", 0, "gloo")
        distributed.ensure_model_parallel_initialized(2, 1)
        with pytest.raises(RuntimeError, match=r"of 4 was asked for, .* of 2; ranks meet when"):
            distributed.init_distributed_environment(4, group.rank)
        with pytest.raises(RuntimeError, match="pipeline_model_parallel_size 2 was asked for, and"):
            distributed.ensure_model_parallel_initialized(2, 2)

    run_ranks(2, run)
    assert distributed.model_parallel_is_initialized()
    assert distributed.get_pp_group().is_last_rank
    assert distributed.get_dp_group().world_size == 1


def test_sizes_that_are_split() -> None:
    utils = module("distributed.utils")
    assert utils.divide(6, 3) == 2
    with pytest.raises(ValueError, match="7 is not a multiple of 3"):
        utils.divide(7, 3)
    parts = utils.split_tensor_along_last_dim(torch.arange(6).view(1, 6), 3, True)
    assert [part.tolist() for part in parts] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    for layers, expected in ((6, [2, 2, 2]), (7, [2, 3, 2]), (8, [3, 3, 2])):
        stages = [utils.get_pp_indices(layers, rank, 3) for rank in range(3)]
        assert [to - start for start, to in stages] == expected
        assert [0, *(to for _, to in stages)] == [*(start for start, _ in stages), layers]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.lm_head = nn.Linear(1, 1, bias=False)


def test_older_arguments_of_the_loader_leave_weights_out() -> None:
    utils = module("model_executor.models.utils")
    names = ("model.body.weight", "model.lm_head.weight", "model.body.rotary_emb.inv_freq")
    weights = [(name, torch.full((1, 1), 3.0)) for name in names]
    mapper = utils.WeightsMapper(orig_to_new_prefix={"model.": ""})
    loader = utils.AutoWeightsLoader(
        Two(), skip_prefixes=["lm_head."], skip_substrs=["rotary_emb.inv_freq"]
    )
    assert loader.load_weights(weights, mapper=mapper) == {"body.weight"}
    with pytest.raises(ValueError, match=r"unexpected weight 'body\.rotary_emb"):
        utils.AutoWeightsLoader(Two()).load_weights(weights, mapper=mapper)


def test_an_inner_model_is_built_by_its_own_configuration(tmp_path: Path) -> None:
    utils = module("model_executor.models.utils")
    config = make_vllm_config(write_tiny_llama(tmp_path / "model"))
    inner = HfConfig(config.model_config.hf_config.to_dict() | {"num_hidden_layers": 1})
    host = bootstrap({"worker"}, PluginSettings(no_plugins=True))
    try:
        model = utils.init_vllm_registered_model(config, prefix="inner", hf_config=inner)
    finally:
        host.close()
    assert type(model).__name__ == "LlamaForCausalLM" and len(model.model.layers) == 1
    assert list(config.compilation_config.static_forward_context) == [
        "inner.model.layers.0.self_attn.attn"
    ]
    assert config.model_config.hf_config.num_hidden_layers == 2


def test_files_of_a_checkpoint(tmp_path: Path) -> None:
    utils = module("model_executor.model_loader.weight_utils")
    first, second = str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")
    save_file({"one": torch.ones(2)}, first)
    save_file({"two": torch.zeros(2)}, second)
    found = dict(utils.safetensors_weights_iterator([first, second], True))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "one": [1.0, 1.0],
        "two": [0.0, 0.0],
    }
    index = {"weight_map": {"one": "a.safetensors"}}
    assert utils.filter_duplicate_safetensors_files([first], str(tmp_path), "i.json") == [first]
    (tmp_path / "i.json").write_text(json.dumps(index))
    assert utils.filter_duplicate_safetensors_files([first, second], str(tmp_path), "i.json") == [
        first
    ]
    kept = utils.filter_files_not_needed_for_inference([first, "x/optimizer.pt", "scheduler.pt"])
    assert kept == [first]

    torch.save({"three": torch.ones(1)}, tmp_path / "c.bin")
    torch.save([torch.ones(1)], tmp_path / "d.bin")
    (item,) = utils.pt_weights_iterator([str(tmp_path / "c.bin")])
    assert item[0] == "three" and item[1].tolist() == [1.0]
    with pytest.raises(ModelFileError, match=r"d\.bin: holds list, not tensors by name"):
        list(utils.pt_weights_iterator([str(tmp_path / "d.bin")]))

    params = {"attn.k_scale": 1}
    names = ("attn.k_scale", "attn.v_scale", "attn.weight")
    mapped = [utils.maybe_remap_kv_scale_name(name, params) for name in names]
    assert mapped == ["attn.k_scale", None, "attn.weight"]


def test_fused_layers_of_a_model_and_of_those_within() -> None:
    find = module("model_executor.utils").get_packed_modules_mapping
    outer, inner = nn.Module(), nn.Module()
    outer.inner = inner
    outer.packed_modules_mapping, inner.packed_modules_mapping = {"a": ["b"]}, {"c": ["d", "e"]}  # type: ignore[assignment]
    assert find(outer) == {"a": ["b"], "c": ["d", "e"]}
    inner.packed_modules_mapping = {"a": ["z"]}  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"has \['b'\] and \['z'\] for 'a'"):
        find(outer)


def test_a_model_is_run_outside_the_engine_in_a_context_of_its_own(tmp_path: Path) -> None:
    context = module("forward_context")
    config = make_vllm_config(write_tiny_llama(tmp_path / "model"))
    model = load_model(config)
    assert not context.is_forward_context_available()
    with context.set_forward_context(None, config), torch.inference_mode():
        assert context.is_forward_context_available()
        assert context.get_forward_context().attn_metadata is None
        hidden = model(torch.tensor([1, 2, 3]), torch.arange(3))
    assert hidden.shape == (3, 64)
    assert not context.is_forward_context_available()


def test_finishing_a_model_is_given_a_device(tmp_path: Path) -> None:
    utils = module("model_executor.model_loader.utils")
    seen = []

    class Layer(nn.Module):
        def process_weights_after_loading(self, dtype: torch.dtype) -> None:
            seen.append((dtype, torch.get_default_device().type))

    model = nn.Sequential(Layer())
    config = make_vllm_config(write_tiny_llama(tmp_path / "model")).model_config
    utils.process_weights_after_loading(model, config, torch.device("meta"))
    assert seen == [(torch.float32, "meta")]


@pytest.mark.parametrize("call", ["bare", "with arguments"])
def test_the_mark_on_models_leaves_them_as_they_are(call: str) -> None:
    mark = module("compilation.decorators").support_torch_compile

    class Model(nn.Module):
        pass

    assert (mark(Model) if call == "bare" else mark(dynamic_arg_dims={"x": 0})(Model)) is Model


def test_layers_of_experts_can_be_asked_for_and_not_built() -> None:
    moe = module("model_executor.layers.fused_moe")
    assert not isinstance(nn.Linear(1, 1), moe.FusedMoE)
    with pytest.raises(TypeError, match="cannot be used: no architecture with experts is served"):
        moe.FusedMoE(num_experts=4, top_k=2)
    with pytest.raises(TypeError, match="UnquantizedFusedMoEMethod cannot be used: no arch"):
        moe.UnquantizedFusedMoEMethod().create_weights(nn.Module())


def test_what_layers_keep_is_told_in_bytes() -> None:
    specs = module("v1.kv_cache_interface")
    window = specs.SlidingWindowSpec(16, 2, 8, torch.float16, sliding_window=32)
    assert isinstance(window, specs.AttentionSpec) and window.page_size_bytes == 1024
    assert specs.MLAAttentionSpec(16, 1, 8, torch.float32).page_size_bytes == 512
    mamba = specs.MambaSpec(1, ((2, 3), (4,)), (torch.float32, torch.float16))
    assert mamba.page_size_bytes == 32
    group = specs.KVCacheGroupSpec(["a"], specs.FullAttentionSpec(16, 2, 8, torch.float16))
    cache = specs.KVCacheConfig(3, [specs.KVCacheTensor(3072, ["a"])], [group])
    assert cache.kv_cache_groups[0].kv_cache_spec.page_size_bytes * cache.num_blocks == 3072


def test_older_paths_hold_the_same_classes() -> None:
    attention, layers = module("attention"), module("model_executor.layers.attention")
    backend = module("v1.attention.backend")
    assert attention.Attention is module("attention.layer").Attention is layers.Attention
    assert attention.AttentionBackend is backend.AttentionBackend
    assert module("attention.backends.abstract").AttentionImpl is backend.AttentionImpl
    registry = module("v1.attention.backends.registry")
    older = module("attention.backends.registry")
    assert older.AttentionBackendEnum is registry.AttentionBackendEnum
    quantization = module("model_executor.layers.quantization")
    base = module("model_executor.layers.quantization.base_config")
    assert quantization.QuantizationConfig is base.QuantizationConfig
    linear = module("model_executor.layers.linear")
    assert not base.method_has_implemented_embedding(linear.UnquantizedLinearMethod)
    vocabulary = module("model_executor.layers.vocab_parallel_embedding")
    assert base.method_has_implemented_embedding(vocabulary.UnquantizedEmbeddingMethod)
    assert vocabulary.pad_vocab_size(65) == 128
    sampler = module("v1.sample.sampler")
    assert module("model_executor.layers.sampler").Sampler is sampler.Sampler
    metadata = module("model_executor.sampling_metadata").SamplingMetadata
    assert metadata is module("v1.sample.metadata").SamplingMetadata
    pooling = module("model_executor.pooling_metadata").PoolingMetadata
    assert pooling is module("v1.pool.metadata").PoolingMetadata


def test_a_fix_up_of_a_configuration_is_registered_and_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
        from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig

        class Blocks(VerifyAndUpdateConfig):
            @staticmethod
            def verify_and_update_config(vllm_config):
                vllm_config.cache_config.block_size = 32

        def register():
            assert "LlamaForCausalLM" not in MODELS_CONFIG_MAP
            MODELS_CONFIG_MAP.update({"LlamaForCausalLM": Blocks})
            assert MODELS_CONFIG_MAP["LlamaForCausalLM"] is Blocks
    """
    entries = {"vllm.general_plugins": {"blocks": "toy_blocks:register"}}
    install_plugin(tmp_path / "site", "toy_blocks", {"toy_blocks": body}, groups=entries)
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = write_tiny_llama(tmp_path / "model")
    host = Host(("front", "engine", "worker"), PluginSettings())
    assert host.problems() == []
    assert EngineArgs(model=str(folder)).to_engine_config(host).cache.block_size == 32
