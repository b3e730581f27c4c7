"""What the operator says of ops: read in front, in force in the worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.op_choices import choose_ops, platform_key, warn_of_loose_ends
from hookserve.engine.platform import Platform, PlatformEnum
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Host, PluginSettings, bootstrap
from hookserve.plugins_builtin.cpu_platform import CpuPlatform
from hookserve.plugins_builtin.cuda_platform import CudaPlatform


@pytest.fixture
def host() -> Iterator[Host]:
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    yield host
    host.close()


def tree(host: Host, model: Path, **options: Any) -> VllmConfig:
    args = EngineArgs(model=str(model), sources={"compilation_config": "flag -cc"}, **options)
    return VllmConfig.from_engine_config(args.to_engine_config(host))


@pytest.mark.checklist(73, 75)
def test_what_is_said_in_front_is_in_force_in_the_worker(
    host: Host, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tree(
        host,
        tiny_llama,
        compilation_config={"custom_ops": ["none", "+rms_norm"], "level": 3, "mode": 3},
        ir_op_priority={"RMSNorm": ["torch"], "nothing": ["torch"]},
    )
    assert config.compilation_config.custom_ops == ["none", "+rms_norm"]
    assert "--compilation-config: level, mode have no effect" in caplog.text
    ops = choose_ops(config, host)
    assert (ops.custom_ops, ops.preferred["rms_norm"]) == (("none", "+rms_norm"), ["torch"])
    assert (ops.platform, ops.dtype, ops.compiles) == ("cpu", torch.float32, False)
    assert "--ir-op-priority names 'nothing', which is no op of the server's" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_loose_ends(ops)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("all,-rms_norm", "custom_ops is 'all,-rms_norm'; expected a list of all, none"),
        ([1], r"custom_ops is \[1\]; expected a list"),
        (["all", "none"], "both all and none"),
        (["+rms_norm", "-RMSNorm"], r"both \+rms_norm and -RMSNorm"),
        (["+RMSNorm", "-RMSNorm"], r"both \+RMSNorm and -RMSNorm"),
    ],
)
def test_a_list_that_means_nothing_is_refused_in_front_with_its_origin(
    host: Host, tiny_llama: Path, given: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"--compilation-config \(from flag -cc\): .*{message}"):
        tree(host, tiny_llama, compilation_config={"custom_ops": given})


@pytest.mark.parametrize("given", ["c", [], [3]])
def test_providers_are_named_in_a_list(host: Host, tiny_llama: Path, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"rms_norm is .*; expected a list of providers"):
        tree(host, tiny_llama, ir_op_priority={"rms_norm": given})


def test_what_a_platform_makes_of_the_list_is_checked_too(host: Host, tiny_llama: Path) -> None:
    config = tree(host, tiny_llama, compilation_config={"custom_ops": ["none"]})
    config.compilation_config.custom_ops.append("all")
    with pytest.raises(ConfigError, match="both all and none"):
        choose_ops(config, host)


def test_a_platform_is_known_by_its_kind_or_else_by_its_device() -> None:
    class Outside(CpuPlatform):
        _enum = PlatformEnum.OOT

    class Silent(Platform):
        device_type = "cuda"

    class Strange(Platform):
        device_type = "board"

    class Based(CudaPlatform):
        def is_out_of_tree(self) -> bool:
            return True

    kinds = (CpuPlatform, Outside, Silent, Strange, CudaPlatform, Based)
    expected = ["cpu", "oot", "cuda", "oot", "cuda", "oot"]
    assert [platform_key(kind()) for kind in kinds] == expected
    assert Based().is_cuda(), "both hold at once"
