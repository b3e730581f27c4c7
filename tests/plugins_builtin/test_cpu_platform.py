"""The CPU platform: its choice of type, from the processor's flags, and its place in the hooks."""

from __future__ import annotations

import pytest

from hookserve.engine.errors import ConfigError
from hookserve.engine.platform import Platform, PlatformEnum
from hookserve.hookspecs import PluginSettings, bootstrap
from hookserve.plugins_builtin import cpu_platform
from hookserve.plugins_builtin.cpu_platform import CpuPlatform, read_cpu_flags


@pytest.fixture
def flags(monkeypatch):
    def pretend(*names: str) -> None:
        monkeypatch.setattr(cpu_platform, "read_cpu_flags", lambda: frozenset(names))

    return pretend


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_gguf_becomes_bfloat16_where_the_processor_multiplies_it(flags, flag):
    flags("avx2", flag)
    dtype, reason = CpuPlatform.preferred_dtype(None, "gguf")
    assert dtype == "bfloat16"
    assert flag in reason


def test_gguf_becomes_float32_elsewhere(flags):
    flags("avx2", "avx512f")
    dtype, reason = CpuPlatform.preferred_dtype("bfloat16", "gguf")
    assert dtype == "float32"
    assert "no native bfloat16" in reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_checkpoints_own_type_is_kept(flags, dtype):
    flags()
    assert CpuPlatform.preferred_dtype(dtype, "safetensors")[0] == dtype


def test_flags_are_read_from_cpuinfo(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16 sse\n\nprocessor\t: 1\n")
    assert read_cpu_flags(cpuinfo) == {"fpu", "avx512_bf16", "sse"}
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert "bf16" in read_cpu_flags(cpuinfo)
    assert read_cpu_flags(tmp_path / "none") == frozenset()


def test_a_type_without_support_is_refused_by_name():
    import torch

    CpuPlatform.check_if_supports_dtype(torch.bfloat16)
    with pytest.raises(ConfigError, match="does not support dtype float64"):
        CpuPlatform.check_if_supports_dtype(torch.float64)


def test_predicates_follow_the_enum():
    assert CpuPlatform().is_cpu()
    assert not CpuPlatform().is_cuda_alike()

    class Elsewhere(Platform):
        _enum = PlatformEnum.OOT

    assert Elsewhere().is_out_of_tree()
    assert not Elsewhere().is_cpu()


def test_it_is_the_platform_when_nobody_else_answers():
    host = bootstrap({"engine", "worker"}, PluginSettings(no_plugins=True))
    try:
        claim = host.platform()
        assert (claim.name, claim.owner) == ("cpu", "hookserve:builtin:cpu")
        assert host.registry("platform").resolve("cpu") is CpuPlatform
        assert host.registry("executor").resolve("uni").__name__ == "UniProcExecutor"
    finally:
        host.close()
