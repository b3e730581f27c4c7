"""Who is named beside a model that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.model_loader import initialize_model
from hookserve.engine.model_parts import describe_ops, prepare_parts
from hookserve.engine.vllm_config import VllmConfig
from hookserve.engine.weights import WeightsMapper
from hookserve.hookspecs import (
    HostError,
    Named,
    OpOverride,
    OpProvider,
    PluginSettings,
    bootstrap,
    hookimpl,
)
from hookserve.ops.activation import GeluAndMul, SiluAndMul
from hookserve.ops.context import set_model_context
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.linear import LinearBase, UnquantizedLinearMethod
from hookserve.ops.quantization import QuantizationConfig
from hookserve.plugins_builtin.llama import LlamaForCausalLM
from hookserve.plugins_builtin.opt import OPTForCausalLM


class MyNorm(RMSNorm):
    pass


def first(*args: Any) -> Any:
    return args[0]


class Mine:
    @hookimpl
    def register_oot_op(self) -> OpOverride:
        return OpOverride("RMSNorm", MyNorm)

    @hookimpl
    def register_op_provider(self) -> list[OpProvider]:
        return [
            OpProvider("silu_and_mul", "used", first, priority=1),
            OpProvider("silu_and_mul", "unused", first),
            OpProvider("gelu_and_mul", "elsewhere", first, supports=lambda device, dtype: False),
            OpProvider("embedding", "unbuilt", first),
        ]


def test_the_overrides_and_providers_that_a_model_computes_with(tiny_llama: Path) -> None:
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(), objects=[Mine()])
    try:
        args = EngineArgs(model=str(tiny_llama))
        config = VllmConfig.from_engine_config(args.to_engine_config(host))
        assert prepare_parts(config, host) == []
        ops = config.compilation_config.ops
        assert ops is not None
        assert describe_ops(ops, host) == []
        with set_model_context(
            static_forward_context={}, dtype=torch.float32, block_size=4, ops=ops
        ):
            SiluAndMul(), GeluAndMul(), RMSNorm(4)
        silu, norm = describe_ops(ops, host)
    finally:
        host.close()
    assert silu == "op silu_and_mul: used of object:Mine"
    assert norm.startswith("op rms_norm: ") and norm.endswith("MyNorm of object:Mine")


@pytest.mark.parametrize("flag", [None, "nowhere:Backend"])
def test_who_asked_for_an_attention_backend_that_there_is_none_of(
    tiny_llama: Path, flag: str | None
) -> None:
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(allow=()))
    try:
        args = EngineArgs(model=str(tiny_llama), attention_backend=flag)
        config = VllmConfig.from_engine_config(args.to_engine_config(host))
        config.attention_config.backend = "nowhere:Backend"  # as the worker does by the platform
        with pytest.raises((ConfigError, HostError)) as caught:
            prepare_parts(config, host)
    finally:
        host.close()
    assert "No module named 'nowhere'" in str(caught.value)
    of_platform = "get_attn_backend_cls of platform hookserve:builtin:cpu asks for what cannot be"
    assert (of_platform in str(caught.value)) is (flag is None)


class Demanding(QuantizationConfig):
    told: ClassVar[list[Any]] = []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Demanding:
        return cls()

    @classmethod
    def get_min_capability(cls) -> int:
        return 90

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    def apply_vllm_mapper(self, mapper: WeightsMapper) -> None:
        self.told.append(mapper.map_name("decoder.layers.0.q_proj"))


class Quantizing:
    @hookimpl
    def quantization(self) -> Named:
        return Named("demanding", Demanding)


def test_a_quantization_is_told_the_models_names_and_asks_for_a_device(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(), objects=[Quantizing()])
    try:
        args = EngineArgs(model=str(tiny_llama), quantization="demanding")
        config = VllmConfig.from_engine_config(args.to_engine_config(host))
        prepare_parts(config, host)
        initialize_model(config, model_class=Renaming)
        assert Demanding.told == ["model.decoder.layers.0.q_proj"], "without the fused part"
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
        config.device_config.device_type = "cuda"
        with pytest.raises(ConfigError, match=r"capability 9\.0; this one has 8\.6"):
            prepare_parts(config, host)
    finally:
        host.close()


class Renaming(LlamaForCausalLM):
    hf_to_vllm_mapper = OPTForCausalLM.hf_to_vllm_mapper


def test_keys_of_a_quantizations_configuration_are_found_by_any_of_their_names() -> None:
    find, find_or = QuantizationConfig.get_from_keys, QuantizationConfig.get_from_keys_or
    assert find({"w_bit": 4, "bits": 8}, ["bits", "w_bit"]) == 8
    assert find_or({"w_bit": 4}, ["bits", "w_bit"], 2) == 4
    assert find_or({}, ["bits"], 2) == 2
    with pytest.raises(ValueError, match="has none of 'bits', 'w_bit'"):
        find({}, ["bits", "w_bit"])
