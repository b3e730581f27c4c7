"""Who is named beside a model that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.model_parts import describe_ops, prepare_parts
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import OpOverride, OpProvider, PluginSettings, bootstrap, hookimpl
from hookserve.ops.activation import GeluAndMul, SiluAndMul
from hookserve.ops.context import set_model_context
from hookserve.ops.layernorm import RMSNorm


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
