"""Ops and layers that packages for vLLM replace: the forms of the decorator, what it is keyed by,
what is built, and what cannot be."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hookserve.hookspecs import Host, PluginSettings
from hookserve.ops.context import set_model_context
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm
from hookserve.ops.linear import ReplicatedLinear
from hookserve.ops.logits_processor import LogitsProcessor
from hookserve.ops.rotary_embedding import get_rope
from plugin_folder import install_plugin
from step_runner import load_model, make_vllm_config
from tiny_llama import LAYERS, write_tiny_llama

GENERAL = "vllm.general_plugins"
pytestmark = pytest.mark.usefixtures("vllm_facade")

HEADER = """
from vllm.model_executor.custom_op import CustomOp, PluggableLayer, op_registry_oot
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

class Toy(RMSNorm):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.toy = True

"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    """A factory: the host of a worker in which one package's function has run."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(body: str, name: str = "ops_of_a_toy") -> Host:
        source = HEADER + "def register():\n" + textwrap.indent(textwrap.dedent(body), "    ")
        entries = {GENERAL: {name: f"{name}:register"}}
        install_plugin(tmp_path, name, {name: "pass"}, groups=entries)
        (tmp_path / name / "__init__.py").write_text(source)
        return Host(("engine", "worker"), PluginSettings())

    return make


def op_set(host: Host, **options: Any) -> OpSet:
    return OpSet(host.registry("oot_op"), host.registry("op_provider"), **options)


def building(ops: OpSet) -> Any:
    return set_model_context(static_forward_context={}, dtype=torch.float32, block_size=4, ops=ops)


def toy(name: str = "ops_of_a_toy") -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.checklist(57, 60, 62, 63, 64)
@pytest.mark.parametrize(
    "form",
    [
        "RMSNorm.register_oot(Toy)",
        "RMSNorm.register_oot()(Toy)",
        "CustomOp.register_oot(name='RMSNorm')(Toy)",
        "CustomOp.register_oot(name='rms_norm')(Toy)",
        "CustomOp.register_oot(_decorated_op_cls=Toy, name='RMSNorm')",
    ],
)
def test_each_form_of_the_decorator_puts_the_class_in_the_place_of_its_op(
    load: Callable[..., Host], form: str
) -> None:
    with building(op_set(load(form))):
        norm, gemma = RMSNorm(8), GemmaRMSNorm(8)
    assert type(norm) is toy().Toy and norm.toy is True  # type: ignore[attr-defined]
    assert type(gemma) is GemmaRMSNorm


@pytest.mark.checklist(57, 58, 124)
def test_the_registry_that_packages_read_is_live_and_shows_classes_alone(
    load: Callable[..., Host],
) -> None:
    host = load("""
        global before, after
        before = repr(op_registry_oot), 'RMSNorm' in op_registry_oot
        RMSNorm.register_oot(Toy)
        after = repr(op_registry_oot), 'RMSNorm' in op_registry_oot
    """)
    assert host.problems() == []
    assert toy().before == ("{}", False)
    assert toy().after == ("{'RMSNorm': <class 'ops_of_a_toy.Toy'>}", True)
    assert toy().Toy.name == "rms_norm"


@pytest.mark.checklist(58, 69)
@pytest.mark.parametrize("listed", ["-RMSNorm", "-rms_norm"])
def test_either_name_switches_a_replacement_off(load: Callable[..., Host], listed: str) -> None:
    with building(op_set(load("RMSNorm.register_oot(Toy)"), custom_ops=[listed])):
        assert type(RMSNorm(8)) is RMSNorm


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            "RMSNorm.register_oot('RMSNorm')(Toy)",
            "TypeError: register_oot decorates classes, not 'RMSNorm'",
            marks=pytest.mark.checklist(61),
        ),
        pytest.param(
            "RMSNorm.register_oot(Toy)\nRMSNorm.register_oot(type('Other', (RMSNorm,), {}))",
            "registers oot_op 'RMSNorm' twice",
            marks=pytest.mark.checklist(59),
        ),
        pytest.param(
            "RMSNorm.register_oot(type('Alien', (), {}))",
            "TypeError: <class 'ops_of_a_toy.Alien'> cannot replace RMSNorm: it is no subclass of "
            "hookserve.ops.layernorm:RMSNorm",
            marks=pytest.mark.checklist(65),
        ),
        pytest.param("CustomOp.register_oot(name='RMSNorn')(Toy)", "there is no op 'RMSNorn'"),
    ],
)
def test_what_cannot_replace_an_op_takes_its_package_out(
    load: Callable[..., Host], body: str, told: str
) -> None:
    host = load(body)
    (problem,) = host.problems()
    assert told in problem
    with building(op_set(host)):
        assert type(RMSNorm(8)) is RMSNorm


@pytest.mark.checklist(54, 55, 56, 66)
def test_every_norm_of_a_model_is_the_toys_and_one_line_tells_what_never_runs(
    load: Callable[..., Host], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = load("""
        class OnCuda(Toy):
            def forward_cuda(self, x, residual=None):
                raise AssertionError('there is no such device')
        RMSNorm.register_oot(OnCuda)
    """)
    config = make_vllm_config(write_tiny_llama(tmp_path / "model"))
    config.compilation_config.ops = op_set(host)
    model = load_model(config)
    norms = [each for each in model.modules() if isinstance(each, RMSNorm)]
    assert len(norms) == 2 * LAYERS + 1
    assert all(each.toy for each in norms)
    (line,) = [line for line in caplog.messages if "forward_cuda" in line]
    assert "ops_of_a_toy" in line and "'cpu' does not call" in line


@pytest.mark.checklist(53)
def test_a_rotation_of_a_plugins_own_turns_as_the_one_that_it_hands_on_to(
    load: Callable[..., Host],
) -> None:
    host = load("""
        class Mine(RotaryEmbedding):
            def forward_oot(self, *args, **kwargs):
                self.calls = getattr(self, 'calls', 0) + 1
                return super().forward_oot(*args, **kwargs)
        RotaryEmbedding.register_oot(Mine)
    """)
    plain = get_rope(8, 64)
    with building(op_set(host, platform="oot")):
        mine = get_rope(8, 64)
    positions, query, key = torch.arange(5), torch.randn(5, 16), torch.randn(5, 8)
    turned, wanted = mine(positions, query, key), plain(positions, query, key)
    assert type(mine).__name__ == "Mine" and mine.calls == 1  # type: ignore[attr-defined]
    assert torch.equal(turned[0], wanted[0]) and torch.equal(turned[1], wanted[1])


@pytest.mark.checklist(60)
def test_a_layer_is_replaced_as_a_whole(load: Callable[..., Host]) -> None:
    host = load("""
        @LogitsProcessor.register_oot
        class MyLogits(LogitsProcessor):
            pass
        @PluggableLayer.register_oot(name="ReplicatedLinear")
        class MyLinear(ReplicatedLinear):
            def forward(self, x):
                return x + 1, None
        global found
        found = dict(op_registry_oot)
    """)
    assert host.problems() == []
    assert sorted(toy().found) == ["LogitsProcessor", "ReplicatedLinear"]
    with building(op_set(host)):
        linear, logits = ReplicatedLinear(4, 4), LogitsProcessor(8)
    assert linear(torch.zeros(2, 4))[0].unique().tolist() == [1.0]
    assert type(logits).__name__ == "MyLogits"


def test_a_class_is_asked_for_by_the_one_that_it_replaces(load: Callable[..., Host]) -> None:
    load("""
        from vllm.model_executor.custom_op import maybe_get_oot_by_class
        global answers
        answers = [maybe_get_oot_by_class(RMSNorm)]
        RMSNorm.register_oot(Toy)
        answers += [maybe_get_oot_by_class(RMSNorm), maybe_get_oot_by_class(ReplicatedLinear)]
    """)
    assert toy().answers == [RMSNorm, toy().Toy, ReplicatedLinear]


def test_an_op_that_a_package_registers_may_be_built_and_replaced_by_itself(
    load: Callable[..., Host],
) -> None:
    host = load("""
        @CustomOp.register("toy_twice")
        class Twice(CustomOp):
            def __init__(self):
                super().__init__(enforce_enable=True, compile_native=True)
            def forward_native(self, x):
                return x * 2
        @Twice.register_oot
        class Thrice(Twice):
            def forward_native(self, x):
                return x * 3
        global twice
        twice = Twice
    """)
    try:
        assert host.problems() == []
        with building(op_set(host)):
            assert toy().twice()(torch.ones(())) == 3
        assert toy().twice()(torch.ones(())) == 2
    finally:
        for registry, name in ((RMSNorm.op_registry, "toy_twice"), (RMSNorm.op_classes, "Twice")):
            registry.pop(name, None)
