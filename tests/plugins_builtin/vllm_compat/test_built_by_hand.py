"""Ops that are built outside of any engine, as the tests of packages for vLLM build them: within a
configuration, and with what plugins have registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.hookspecs import Host, PluginSettings, bootstrap
from plugin_folder import install_plugin
from step_runner import load_model, make_vllm_config

PLATFORM = """
from vllm.platforms.interface import Platform, PlatformEnum


class DummyPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "DummyDevice"
    device_type = "privateuseone"
    dispatch_key = "PrivateUse1"

    @classmethod
    def check_and_update_config(cls, vllm_config):
        vllm_config.compilation_config.custom_ops = ["all"]
"""
OPS = """
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding


@RotaryEmbedding.register_oot
class DummyRotaryEmbedding(RotaryEmbedding):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.addition_config = True

    def forward_oot(self, *args, **kwargs):
        self.ran = True
        return super().forward_oot(*args, **kwargs)


@RMSNorm.register_oot
class DummyNorm(RMSNorm):
    pass
"""
PACKAGE = """
def platform():
    return "by_hand.platform.DummyPlatform"


def register():
    import by_hand.ops
"""


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm_facade: None
) -> Iterator[Callable[[], Host]]:
    """A factory: the host of a program in which a package's platform and ops are."""
    groups = {
        "vllm.platform_plugins": {"dummy": "by_hand:platform"},
        "vllm.general_plugins": {"ops": "by_hand:register"},
    }
    files = {"by_hand/platform.py": PLATFORM, "by_hand/ops.py": OPS}
    install_plugin(tmp_path, "by-hand", {"by_hand": PACKAGE}, groups=groups, files=files)
    monkeypatch.syspath_prepend(tmp_path)
    hosts: list[Host] = []

    def make() -> Host:
        hosts.append(bootstrap(("front", "engine", "worker"), PluginSettings()))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


@pytest.mark.checklist(53, 63, 76)
def test_an_op_is_that_of_the_plugin_and_calls_the_method_of_the_platform(
    program: Callable[[], Host],
) -> None:
    program()
    from vllm.config import VllmConfig, set_current_vllm_config  # type: ignore[import-not-found]
    from vllm.model_executor.layers.rotary_embedding import (  # type: ignore[import-not-found]
        RotaryEmbedding,
    )

    with set_current_vllm_config(VllmConfig()):
        rotary = RotaryEmbedding(16, 16, 16, 16, True, torch.float16)
    assert type(rotary).__name__ == "DummyRotaryEmbedding"
    assert rotary.addition_config is True
    plain = RotaryEmbedding(16, 16, 16, 16, True, torch.float16)
    assert type(plain) is RotaryEmbedding
    positions, query = torch.arange(3), torch.ones(3, 32)
    assert torch.equal(rotary(positions, query)[0], plain(positions, query)[0])
    assert rotary.ran


@pytest.mark.checklist(67, 68, 70, 72)
def test_the_configuration_that_is_current_switches_ops(program: Callable[[], Host]) -> None:
    program()
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.custom_op import CustomOp  # type: ignore[import-not-found]
    from vllm.model_executor.layers.activation import (  # type: ignore[import-not-found]
        SiluAndMul,
    )
    from vllm.model_executor.layers.layernorm import RMSNorm  # type: ignore[import-not-found]

    def within(*listed: str) -> Any:
        config = VllmConfig(compilation_config=CompilationConfig(custom_ops=list(listed)))
        return set_current_vllm_config(config, check_compile=False, prefix="model")

    with within("none", "+silu_and_mul"):
        assert type(RMSNorm(8)) is RMSNorm
        assert (SiluAndMul().enabled(), RMSNorm.enabled(), CustomOp.default_on()) == (
            True,
            False,
            False,
        )
        with within("all"):
            assert type(RMSNorm(8)).__name__ == "DummyNorm"
        assert type(RMSNorm(8)) is RMSNorm
    with (
        pytest.raises(ValueError, match=r"both \+rms_norm and -RMSNorm"),
        within("+rms_norm", "-RMSNorm"),
    ):
        pass


def test_before_plugins_are_loaded_classes_are_what_they_are(
    program: Callable[[], Host],
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm

    with set_current_vllm_config(VllmConfig()):
        assert type(RMSNorm(8)) is RMSNorm


def test_a_model_that_is_being_loaded_keeps_its_own_surroundings(
    program: Callable[[], Host], tiny_llama: Path
) -> None:
    program()
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.models.llama import (  # type: ignore[import-not-found]
        LlamaForCausalLM,
    )

    built = []

    class Nested(LlamaForCausalLM):  # type: ignore[misc]
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            with set_current_vllm_config(VllmConfig()):
                built.append(type(RMSNorm(8)))

    load_model(make_vllm_config(tiny_llama), Nested)
    assert built == [RMSNorm]  # the configuration that is loaded has been given no plugin's ops


@pytest.mark.parametrize(
    ("older", "parameters"),
    [
        ({"rotary_dim": 16, "base": 500.0}, {"rope_theta": 500.0}),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"type": "linear", "factor": 4.0}),
        ({"rotary_dim": 10}, {"partial_rotary_factor": 0.625}),
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5}),
    ],
)
def test_rotations_are_built_of_what_older_releases_gave(
    older: dict[str, Any], parameters: dict[str, Any], vllm_facade: None
) -> None:
    from vllm.model_executor.layers.rotary_embedding import get_rope

    ropes = [
        get_rope(16, max_position=64, **older),
        get_rope(16, 64, True, parameters, torch.float32),
    ]
    assert ropes[0].rotary_dim == ropes[1].rotary_dim
    query, key = torch.randn(3, 16), torch.randn(3, 16)
    turned = [rope.forward_native(torch.tensor([0, 5, 9]), query, key) for rope in ropes]
    assert torch.equal(turned[0][0], turned[1][0]) and torch.equal(turned[0][1], turned[1][1])
    assert not torch.equal(turned[0][0], query)
