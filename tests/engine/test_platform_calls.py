"""How the engine asks a platform: by names, of one object, and with its answers checked."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_engine import make_config
from hookserve.engine import platform_calls
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.platform import (
    CpuArchEnum,
    DeviceCapability,
    Platform,
    PlatformEnum,
    UnspecifiedPlatform,
)
from hookserve.engine.platform_calls import call_by_names, choose_attention
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Host, PluginError, PluginSettings, bootstrap, hookimpl
from hookserve.plugins_builtin.cpu_platform import CpuPlatform
from hookserve.plugins_builtin.cuda_platform import CudaPlatform


class Old(CpuPlatform):
    """As it was asked until its arguments became one."""

    @classmethod
    def get_attn_backend_cls(  # type: ignore[override]
        cls,
        selected_backend: Any,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int,
        use_v1: bool,
        use_mla: bool,
        has_sink: bool = True,
        unknown: str = "default",
    ) -> str:
        given = (selected_backend, head_size, dtype, kv_cache_dtype, block_size, use_v1, use_mla)
        return f"{given} {has_sink} {unknown}"


class New(CpuPlatform):
    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        wanted = attn_selector_config
        assert not wanted.use_mla and wanted.attn_type == "decoder"
        return f"{selected_backend} {wanted.head_size} {wanted.block_size} {num_heads}"


class Demanding(CpuPlatform):
    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, phase: str) -> str:  # type: ignore[override]
        return phase


def test_attention_is_asked_for_in_the_form_that_the_platform_was_written_for() -> None:
    config = VllmConfig.from_engine_config(make_config())
    config.model_config.hf_config.update({"hidden_size": 64, "num_attention_heads": 4})
    head = config.model_config.get_head_size()
    heads = config.model_config.get_num_attention_heads(config.parallel_config)
    blocks, dtype = config.cache_config.block_size, config.model_config.dtype
    assert choose_attention(Old(), config) == (
        f"{(None, head, dtype, 'auto', blocks, True, False)} False default"
    )
    assert choose_attention(New(), config) == f"None {head} {blocks} {heads}"
    assert choose_attention(CpuPlatform(), config) is None
    with pytest.raises(TypeError, match="asks for phase; expected arguments among head_size, "):
        choose_attention(Demanding(), config)


def test_arguments_that_have_a_place_and_no_name_are_given_in_it() -> None:
    assert call_by_names(math.atan2, {"y": 1.0, "x": 0.0}) == math.pi / 2
    assert call_by_names(lambda a, *rest, b=2, **more: (a, rest, b, more), {"a": 1, "c": 3}) == (
        1,
        (),
        2,
        {},
    )


@pytest.fixture
def host_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[Host] = []

    def make(cls: type, *roles: Any) -> Host:
        module = type(platform_calls)("offered_platform")
        module.Offered = cls  # type: ignore[attr-defined]
        monkeypatch.setitem(__import__("sys").modules, "offered_platform", module)

        class Offers:
            @hookimpl
            def platform(self) -> str:
                return "offered_platform:Offered"

        host = bootstrap(roles or ["front"], PluginSettings(allow=()), objects=[Offers()])
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()


def test_in_front_it_is_asked_about_the_model_and_said_what_of_it_nobody_calls(
    host_with: Callable[..., Host], tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    class Asked(CpuPlatform):
        @classmethod
        def pre_register_and_update(cls, parser: Any = None) -> None:
            asked.append(parser)

        @classmethod
        def log_warnings(cls) -> None:
            asked.append("log_warnings")

        @classmethod
        def verify_model_arch(cls, model_arch: str) -> None:
            asked.append(model_arch)

        @classmethod
        def check_max_model_len(cls, max_model_len: int) -> int:
            return max_model_len // 2

        @classmethod
        def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
            asked.append(vllm_config.parallel_config.worker_cls)

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            asked.append(vllm_config.model_config.max_model_len)

        @classmethod
        def get_punica_wrapper(cls) -> str:
            return "never"

        @classmethod
        def validate_request(cls, processed_inputs: Any, params: Any) -> None: ...

    host = host_with(Asked)
    with caplog.at_level(logging.INFO):
        config = EngineArgs(model=str(tiny_llama)).create_engine_config(host)
    assert asked == [None, "log_warnings", "LlamaForCausalLM", "auto", 256]
    assert config.model_config.max_model_len == 256
    assert config.parallel_config.worker_cls == "hookserve.engine.worker:Worker", "left open by it"
    assert (
        f"of {host.platform().owner}: nothing here calls its get_punica_wrapper, validate_re"
        in (caplog.text)
    )
    assert "changed max_model_len from 512 to 256" in caplog.text


@pytest.mark.parametrize(
    ("method", "answer", "said"),
    [
        ("verify_model_arch", ValueError("no Llamas"), "verify_model_arch raised .*no Llamas"),
        ("check_max_model_len", "many", "gave 'many'; expected a number of tokens"),
        ("check_max_model_len", 0, "gave 0; expected a number of tokens"),
        ("log_warnings", OSError("no log"), "log_warnings raised .*no log"),
    ],
)
def test_what_it_refuses_stops_the_start_under_its_name(
    method: str, answer: Any, said: str, host_with: Callable[..., Host], tiny_llama: Path
) -> None:
    def respond(cls: type, *given: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    refusing = type("Refusing", (CpuPlatform,), {method: classmethod(respond)})
    host = host_with(refusing)
    with pytest.raises((PluginError, ConfigError), match=said) as caught:
        EngineArgs(model=str(tiny_llama)).create_engine_config(host)
    assert host.platform().owner in str(caught.value)


def test_one_that_cannot_be_made_is_told_with_its_owner(
    host_with: Callable[..., Host],
) -> None:
    class Unmade(CpuPlatform):
        def __init__(self) -> None:
            raise OSError("no board")

    host = host_with(Unmade)
    with pytest.raises(PluginError, match=r"Unmade\(\) raised .*no board"):
        platform_calls.import_platform(host.platform(), host)


def test_types_that_a_class_states_as_the_ecosystem_does_are_its_types() -> None:
    class Halves(Platform):
        device_name = "halves"

        @property
        def supported_dtypes(self) -> list[torch.dtype]:
            return [torch.float16, torch.bfloat16]

    assert Halves.dtype_names() == ("float16", "bfloat16")
    assert CpuPlatform.dtype_names() == CpuPlatform.supported_dtype_names
    assert Halves.preferred_dtype("float32", "safetensors") == (
        "float16",
        "platform halves prefers float16",
    )
    assert Halves.preferred_dtype("bfloat16", "safetensors")[0] == "bfloat16"
    Halves.check_if_supports_dtype(torch.float16)
    with pytest.raises(ConfigError, match="halves does not support dtype float32"):
        Halves.check_if_supports_dtype(torch.float32)


def test_a_device_with_memory_of_its_own_has_what_is_not_used_of_it() -> None:
    class Board(Platform):
        device_name = "board"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 1000

        @classmethod
        def get_current_memory_usage(cls, device: torch.device | None = None) -> float:
            return 400.0

    class Larger(Board):
        @staticmethod
        def get_device_total_memory(device_id: int = 0) -> int:
            return 2000

    assert Board.available_memory()[0] == 600
    assert Larger.available_memory()[0] == 1600
    assert "board" in Board.available_memory()[1]


def test_what_kind_a_platform_is() -> None:
    class Rocm(Platform):
        _enum = PlatformEnum.ROCM

    assert CpuPlatform().is_cpu() and not CpuPlatform().is_cuda_alike()
    assert Rocm().is_rocm() and Rocm().is_cuda_alike() and not Rocm().is_cuda()
    assert UnspecifiedPlatform().is_unspecified()
    assert not (CudaPlatform().is_tpu() or CudaPlatform().is_xpu())


def test_generations_of_devices_are_in_order() -> None:
    class Nine(Platform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 1)

    assert DeviceCapability(9, 0).as_version_str() == "9.0"
    assert DeviceCapability(9, 0).to_int() == 90
    assert Nine.has_device_capability(90) and Nine.has_device_capability((9, 1))
    assert not Nine.has_device_capability(100) and not Nine.has_device_capability((9, 2))
    assert Nine.is_device_capability(91) and Nine.is_device_capability((9, 1))
    assert not Nine.is_device_capability(90)
    assert Nine.is_device_capability_family(90) and not Nine.is_device_capability_family(100)
    assert CpuPlatform.get_device_capability() is None
    assert not CpuPlatform.has_device_capability(0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x86_64", CpuArchEnum.X86),
        ("AMD64", CpuArchEnum.X86),
        ("aarch64", CpuArchEnum.ARM),
        ("ppc64le", CpuArchEnum.POWERPC),
        ("riscv64", CpuArchEnum.RISCV),
        ("sparc", CpuArchEnum.OTHER),
        ("", CpuArchEnum.UNKNOWN),
    ],
)
def test_the_machines_architecture(
    name: str, kind: CpuArchEnum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: name)
    assert CpuPlatform.get_cpu_architecture() is kind
