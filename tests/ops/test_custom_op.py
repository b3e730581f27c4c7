"""Classes that stand in for registered ones: how they come in, what is built, what is called."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from hookserve.hookspecs import (
    OpOverride,
    PluginConflictError,
    PluginError,
    PluginSettings,
    bootstrap,
    hookimpl,
)
from hookserve.hookspecs.op_names import OP_CLASSES
from hookserve.ops import attention, logits_processor, rotary_embedding
from hookserve.ops.activation import SiluAndMul
from hookserve.ops.context import set_model_context
from hookserve.ops.custom_op import CustomOp, Replaceable
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm
from hookserve.ops.linear import ColumnParallelLinear, ReplicatedLinear
from op_sets import make_op_set

BUILT_IN = (attention, logits_processor, rotary_embedding)
"""Whose import registers them."""


class Mine(RMSNorm):
    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return torch.full_like(x, 7.0)


class OnCuda(RMSNorm):
    def forward_cuda(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        raise AssertionError("there is no such device")


class MyLinear(ReplicatedLinear):
    pass


class NoNorm(SiluAndMul):
    pass


def building(ops: OpSet | None = None) -> AbstractContextManager[Any]:
    return set_model_context(
        static_forward_context={}, dtype=torch.float32, block_size=4, ops=ops or make_op_set()
    )


def declare(*classes: tuple[str, type], **options: Any) -> OpSet:
    given = {"dist:hookserve:me": [OpOverride(op, target) for op, target in classes]}
    return make_op_set(given, **options)


# -- what is built ---------------------------------------------------------------------------------


def test_the_table_of_names_is_that_of_the_classes() -> None:
    built_in = {
        name: op.__name__
        for name, op in Replaceable.op_registry.items()
        if op.__module__.startswith("hookserve.")
    }
    assert built_in == OP_CLASSES
    assert {op.name for op in Replaceable.op_classes.values()} == set(Replaceable.op_registry)


@pytest.mark.parametrize("name", ["RMSNorm", "rms_norm"])
def test_a_subclass_is_built_in_the_place_of_its_op_and_of_no_other(name: str) -> None:
    ops = declare((name, Mine), ("replicated_linear", MyLinear))
    with building(ops):
        norm, gemma = RMSNorm(4), GemmaRMSNorm(4)
        linear, column = ReplicatedLinear(4, 4), ColumnParallelLinear(4, 4)
    assert (type(norm), type(gemma)) == (Mine, GemmaRMSNorm)
    assert (type(linear), type(column)) == (MyLinear, ColumnParallelLinear)
    assert norm(torch.ones(2, 4)).unique().tolist() == [7.0]
    assert norm.name == "rms_norm"
    assert linear(torch.zeros(2, 4))[0].shape == (2, 4)
    rows = {row.op: (row.implementation, row.owner, row.built, row.calls) for row in ops.rows()}
    assert rows == {
        "rms_norm": (f"{__name__}:Mine", "dist:hookserve:me", 1, 1),
        "gemma_rms_norm": ("torch", "hookserve", 1, 0),
        "replicated_linear": (f"{__name__}:MyLinear", "dist:hookserve:me", 1, 1),
        "column_parallel_linear": ("torch", "hookserve", 1, 0),
        "linear": ("torch", "hookserve", 2, 1),
    }
    assert type(RMSNorm(4)) is RMSNorm, "outside of a model nothing is replaced"


@pytest.mark.checklist(68, 70, 72)
@pytest.mark.parametrize(
    ("custom_ops", "is_mine"),
    [
        ([], True),
        (["all"], True),
        (["none", "+RMSNorm"], True),
        (["none"], False),
        (["-RMSNorm"], False),
        (["-rms_norm"], False),
    ],
)
def test_the_list_has_the_last_word_and_enabled_tells(
    custom_ops: list[str], is_mine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with building(declare(("RMSNorm", Mine), custom_ops=custom_ops)):
        norm = RMSNorm(4)
        assert (type(norm) is Mine) is is_mine
        assert RMSNorm.enabled() is Mine.enabled() is norm.enabled() is is_mine
        assert GemmaRMSNorm.enabled() is ("none" not in custom_ops)
        assert CustomOp.default_on() is ("none" not in custom_ops)
    assert ("dist:hookserve:me's override of rms_norm" in caplog.text) is (custom_ops == ["none"])
    assert RMSNorm.enabled() and CustomOp.default_on()


@pytest.mark.checklist(56, 77)
def test_an_override_that_the_platform_does_not_call_is_built_and_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with building(declare(("RMSNorm", OnCuda))):
        norm = RMSNorm(4)
    assert type(norm) is OnCuda
    x = torch.randn(2, 4)
    assert torch.equal(norm(x), RMSNorm(4)(x))
    (line,) = caplog.messages
    assert "dist:hookserve:me overrides forward_cuda of rms_norm (RMSNorm)" in line
    assert "'cpu' does not call" in line


@pytest.mark.checklist(66, 67, 76)
@pytest.mark.parametrize(
    ("platform", "called"),
    [
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        ("rocm", "cuda"),
        ("xpu", "native"),
        ("tpu", "native"),
        ("oot", "oot"),
    ],
)
def test_the_platform_chooses_the_method(platform: str, called: str) -> None:
    said = []

    class Tells(RMSNorm):
        def forward_native(self, *args: Any) -> Any:
            said.append("native")

        def forward_cpu(self, *args: Any) -> Any:
            said.append("cpu")

        def forward_cuda(self, *args: Any) -> Any:
            said.append("cuda")

        def forward_oot(self, *args: Any) -> Any:
            said.append("oot")

    with building(declare(("RMSNorm", Tells), platform=platform)):
        RMSNorm(4)(torch.ones(1, 4))
    assert said == [called]


def test_a_condition_that_does_not_hold_leaves_the_op_alone() -> None:
    asked = []

    def when(config: Any) -> bool:
        asked.append(config)
        return False

    ops = make_op_set({"d:hookserve:me": [OpOverride("RMSNorm", Mine, when)]}, config="the config")
    with building(ops):
        assert type(RMSNorm(4)) is type(RMSNorm(4)) is RMSNorm
    assert asked == ["the config"]


def test_what_is_no_subclass_is_refused_under_its_owners_name() -> None:
    message = r"NoNorm.* cannot replace RMSNorm: it is no subclass of hookserve.ops.layernorm:RMSN"
    with building(declare(("RMSNorm", NoNorm))), pytest.raises(PluginError, match=message) as info:
        RMSNorm(4)
    assert info.value.identity == "dist:hookserve:me"


@pytest.mark.checklist(74)
def test_names_and_overrides_that_nothing_came_of_are_told_with_the_nearest() -> None:
    given = [("RMSNorm", Mine), ("SiluAndMull", NoNorm), ("GemmaRMSNorm", NoNorm)]
    ops = declare(*given, custom_ops=["-rms_nrm", "+RMSNorm"])
    with building(ops):
        RMSNorm(4)
    first, second, third = ops.loose_ends()
    assert first.startswith("custom_ops names 'rms_nrm', which is no op; did you mean rms_norm ")
    assert second.startswith("dist:hookserve:me overrides SiluAndMull, which the model does not b")
    assert "did you mean SiluAndMul" in second
    assert third == "dist:hookserve:me overrides GemmaRMSNorm, which the model does not build"


# -- ops of a plugin's own -------------------------------------------------------------------------


@pytest.fixture
def forget_ops() -> Iterator[None]:
    before = dict(Replaceable.op_registry), dict(Replaceable.op_classes)
    yield
    for held, was in zip((Replaceable.op_registry, Replaceable.op_classes), before, strict=True):
        held.clear()
        held.update(was)


def test_a_new_op_is_registered_under_two_names_that_nobody_else_has(forget_ops: None) -> None:
    @CustomOp.register("twice")
    class Twice(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Thrice(Twice):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    for name in ("twice", "Twice"):
        with building(declare((name, Thrice))):
            assert Twice()(torch.ones(())) == 3
    both = {"a:hookserve:a": [OpOverride("twice", Thrice)], "b:b:b": [OpOverride("Twice", Thrice)]}
    with (
        building(make_op_set(both)),
        pytest.raises(PluginConflictError, match=r"a:hook.* b:b:b .*same op"),
    ):
        Twice()
    with pytest.raises(PluginError, match=r"'rms_norm'.* module hookserve.ops.layernorm has reg"):

        @CustomOp.register("rms_norm")
        class Other(CustomOp):
            pass

    with pytest.raises(TypeError, match="it is no CustomOp"):
        CustomOp.register("three")(ColumnParallelLinear)


class Nameless(CustomOp):
    def forward_native(self) -> str:
        return "native"

    def forward_cpu(self) -> str:
        return "cpu"


@pytest.mark.parametrize(
    ("custom_ops", "compiles", "called"),
    [
        ((), False, "cpu"),
        ((), True, "native"),
        (("all",), True, "cpu"),
        (("none",), False, "native"),
    ],
)
def test_an_op_that_nobody_registered_goes_with_the_others(
    custom_ops: tuple[str, ...], compiles: bool, called: str
) -> None:
    with building(make_op_set(custom_ops=custom_ops, compiles=compiles)):
        assert Nameless()() == called
        assert Nameless(enforce_enable=True)() == "cpu"
        assert Nameless.enabled() is CustomOp.default_on() is (called == "cpu")
    assert Nameless()() == "native", "outside of a model there is no platform"


# -- register_oot ----------------------------------------------------------------------------------

FORMS: dict[str, Callable[[type], Any]] = {
    "bare": RMSNorm.register_oot,
    "called": lambda op: RMSNorm.register_oot()(op),
    "by its class name": lambda op: CustomOp.register_oot(name="RMSNorm")(op),
    "by its registered name": lambda op: CustomOp.register_oot(name="rms_norm")(op),
    "as a call": lambda op: CustomOp.register_oot(_decorated_op_cls=op, name="RMSNorm"),
}


class Acts:
    """A plugin whose code does something in a hook at the start."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    @hookimpl
    def process_started(self) -> None:
        self.act()


class Declares:
    @hookimpl
    def register_oot_op(self) -> OpOverride:
        return OpOverride("rms_norm", Mine)


def start(*plugins: object, **settings: Any) -> Any:
    roles = {"front", "engine", "worker"}
    host = bootstrap(roles, PluginSettings(**settings), objects=plugins)
    try:
        host.calls.process_started(host.roles, None)
    except BaseException:
        host.close()
        raise
    return host


@pytest.mark.parametrize("form", FORMS)
def test_a_class_that_a_plugins_code_registers_is_the_plugins(form: str) -> None:
    returned = []
    host = start(Acts(lambda: returned.append(FORMS[form](Mine))))
    try:
        assert returned == [Mine]
        (plugin,) = [each for each in host.describe() if each.group == "object"]
        (declared,) = plugin.declarations
        assert (declared.kind, declared.name) == ("oot_op", "RMSNorm")
        with building(OpSet(host.registry("oot_op"), host.registry("op_provider"))):
            assert type(RMSNorm(4)) is Mine
    finally:
        host.close()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: RMSNorm.register_oot("RMSNorm"), r"TypeError: register_oot decorates classes"),  # type: ignore[type-var]
        (lambda: RMSNorm.register_oot(NoNorm), r"TypeError: .* is no subclass of"),
        (lambda: CustomOp.register_oot(name="RMSNrm")(Mine), r"no op 'RMSNrm'.*mean RMSNorm"),
        (lambda: CustomOp.register_oot(Mine), "no op 'CustomOp' to replace"),
    ],
)
def test_what_cannot_be_registered_puts_the_plugin_out(
    act: Callable[[], Any], message: str
) -> None:
    host = start(Acts(act))
    try:
        (plugin,) = [each for each in host.describe() if each.group == "object"]
        assert plugin.state == "out"
        assert plugin.error is not None
        assert re.search(message, plugin.error)
        assert host.registry("oot_op").claims() == []
    finally:
        host.close()


def test_outside_of_any_plugin_nobody_registers() -> None:
    with pytest.raises(PluginError, match="'RMSNorm' was registered outside any plugin's code"):
        RMSNorm.register_oot(Mine)


def test_a_second_owner_is_a_conflict_that_the_operator_decides() -> None:
    first, second = Declares(), Acts(functools.partial(RMSNorm.register_oot, OnCuda))
    with pytest.raises(PluginConflictError, match=r"RMSNorm.*object:.*Declares.*object:.*Acts"):
        start(first, second)
    host = start(first, second, prefer=("oot_op:rms_norm=object:Declares",))
    try:
        (claim,) = host.registry("oot_op").claims()
        assert (claim.name, claim.target) == ("RMSNorm", Mine)
    finally:
        host.close()
