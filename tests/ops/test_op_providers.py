"""Which provider computes an op, why, and that it gives what the op itself does."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookserve.hookspecs import OpOverride, OpProvider, PluginError, UnknownNameError
from hookserve.ops.activation import GeluAndMul, SiluAndMul
from hookserve.ops.context import set_model_context
from hookserve.ops.cpu_kernels import CpuKernels
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm
from hookserve.ops.rotary_embedding import PartialRotaryEmbedding, RotaryEmbedding, get_rope
from op_sets import make_op_set

BF16 = torch.bfloat16
ME, YOU = "dist:hookserve:me", "other:hookserve:you"


def building(
    ops: OpSet, kernels: CpuKernels | None = None, dtype: torch.dtype = torch.float32
) -> AbstractContextManager[Any]:
    return set_model_context(
        static_forward_context={}, dtype=dtype, block_size=4, kernels=kernels, ops=ops
    )


def twice(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(2, -1)[0] * 2


class Made:
    """A provider with something to keep."""

    def __init__(self) -> None:
        self.factor = 3

    def __call__(self, x: torch.Tensor) -> Any:
        return NotImplemented if x.shape[0] > 2 else x.chunk(2, -1)[0] * self.factor


def never(*args: Any) -> Any:
    raise LookupError("no such library")


class Broken:
    def __init__(self) -> None:
        never()


def silu(name: str, target: Any = twice, **options: Any) -> OpProvider:
    return OpProvider("silu_and_mul", name, target, **options)


def built(ops: OpSet) -> tuple[float, Any]:
    """What the op makes of ones, and its row."""
    with building(ops):
        value = SiluAndMul()(torch.ones(1, 4))
    (row,) = ops.rows()
    return round(value.max().item(), 2), row


# -- the choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "value", "name", "reason"),
    [
        ({ME: [silu("a")]}, 2, "a", "the first that works"),
        ({ME: [silu("a", priority=-1)]}, 2, "a", r"the first that works; 'c' of .*: there are no "),
        ({ME: [silu("a")], YOU: [silu("b", Made, priority=1)]}, 3, "b", "the first that works"),
        (
            {ME: [silu("a", supports=lambda device, dtype: "only on Mondays")], YOU: [silu("b")]},
            2,
            "b",
            f"the first that works; 'a' of {ME}: only on Mondays",
        ),
        (
            {ME: [silu("a", supports=lambda device, dtype: dtype is BF16)]},
            0.73,
            "torch",
            f".*'a' of {ME}: does not take float32 on cpu; 'c' of .*",
        ),
        (
            {ME: [silu("a", Broken)]},
            0.73,
            "torch",
            f".*'a' of {ME} failed: LookupError: no s.*",
        ),
        ({ME: [silu("a", supports=never)]}, 0.73, "torch", f".*'a' of {ME} failed: LookupErr.*"),
        ({ME: [silu("a", "nowhere:f")]}, 0.73, "torch", f".*'a' of {ME} failed: .*nowhere.*"),
    ],
)
def test_the_first_that_works_is_taken_and_the_others_are_told_of(
    given: Any, value: float, name: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    got, row = built(make_op_set(given))
    assert (got, row.implementation) == (value, name)
    assert re.match(reason, row.reason), row.reason
    assert ("is not used" in caplog.text) is ("failed" in reason)
    assert row.owner == {"torch": "hookserve", "a": ME, "b": YOU}[name]


@pytest.mark.parametrize(
    ("wanted", "value", "name"),
    [(["b"], 3, "b"), (["torch"], 0.73, "torch"), (["never", "b", "a"], 3, "b")],
)
def test_the_operator_names_one(wanted: list[str], value: float, name: str) -> None:
    refuses = silu("never", supports=lambda device, dtype: False)
    given = {ME: [silu("a"), silu("b", Made), refuses]}
    got, row = built(make_op_set(given, preferred={"silu_and_mul": wanted}))
    assert (got, row.implementation) == (value, name)
    assert row.reason.startswith("named by the operator")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("c", r"no provider of silu_and_mul works .*'c' of .*: there are no compiled kernels"),
        ("brokn", r"nobody provides silu_and_mul as 'brokn'; did you mean broken"),
        ("broken", r"dist:hookserve:me.*provider 'broken' of silu_and_mul: LookupError: no such"),
        ("never", r"dist:hookserve:me.*provider 'never' of silu_and_mul: LookupError: no such"),
    ],
)
def test_one_that_the_operator_names_must_work(wanted: str, message: str) -> None:
    given = {ME: [silu("a"), silu("broken", Broken), silu("never", supports=never)]}
    with pytest.raises((PluginError, UnknownNameError), match=message):
        built(make_op_set(given, preferred={"silu_and_mul": [wanted]}))


class Slow(SiluAndMul):
    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward_native(x)


@pytest.mark.parametrize(
    ("given", "custom_ops", "reason"),
    [
        ([OpOverride("SiluAndMul", Slow)], [], f"{ME} overrides it"),
        ([], ["-SiluAndMul"], "custom_ops has -SiluAndMul"),
    ],
)
def test_a_provider_that_is_named_for_an_op_that_has_none_is_told_of(
    given: list[Any], custom_ops: list[str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"custom_ops": custom_ops, "preferred": {"silu_and_mul": ["a"]}}
    built(make_op_set({ME: [*given, silu("a")]}, **options))
    assert f"names 'a' of silu_and_mul, which is not used: {reason}" in caplog.text
    with pytest.raises(UnknownNameError, match="nobody provides silu_and_mul as 'a'"):
        built(make_op_set({ME: given}, **options))


def test_what_a_provider_does_not_take_is_torchs() -> None:
    ops = make_op_set({ME: [silu("b", Made)]})
    with building(ops):
        op = SiluAndMul()
    x = torch.randn(3, 8)
    assert torch.equal(op(x), op.forward_native(x))
    assert torch.equal(op(x[:2]), x[:2, :4] * 3)


def test_an_op_that_is_switched_off_and_classes_of_others_have_no_provider() -> None:
    class Other(SiluAndMul):
        pass

    with building(make_op_set({ME: [silu("a")]})):
        assert SiluAndMul()._provided is twice
        assert Other()._provided is None
    with building(make_op_set({ME: [silu("a")]}, custom_ops=["-SiluAndMul"])):
        assert SiluAndMul()._provided is None


# -- what providers are called with ----------------------------------------------------------------


def test_each_op_gives_what_it_says_and_takes_what_comes_back() -> None:
    seen: dict[str, Any] = {}

    def norm(x: Any, residual: Any, weight: Any, eps: float) -> Any:
        seen["norm"] = (residual, weight, eps)
        return x + 1, None if residual is None else x + residual

    def gelu(x: Any, approximate: str) -> Any:
        seen["gelu"] = approximate
        return x[..., :2]

    def rotate(x: Any, cos: Any, sin: Any, head_size: int) -> Any:
        seen["rotate"] = (tuple(x.shape), tuple(cos.shape), tuple(sin.shape), head_size)
        return x * 2

    ops = make_op_set(
        {
            ME: [
                OpProvider("RMSNorm", "a", norm),
                OpProvider("gemma_rms_norm", "a", norm),
                OpProvider("gelu_and_mul", "a", gelu),
                OpProvider("rotary_embedding", "a", rotate),
                OpProvider("PartialRotaryEmbedding", "a", rotate),
            ]
        }
    )
    x, residual = torch.randn(3, 4), torch.randn(3, 4)
    with building(ops):
        for kind in (RMSNorm, GemmaRMSNorm):
            op = kind(4, eps=0.5)
            assert torch.equal(op(x), x + 1)
            assert (seen["norm"][0], seen["norm"][1] is op.weight, seen["norm"][2]) == (
                None,
                True,
                0.5,
            )
            got, total = op(x, residual)
            assert torch.equal(got, x + 1) and torch.equal(total, x + residual)
        assert GeluAndMul("tanh")(x).shape == (3, 2)
        assert seen["gelu"] == "tanh"
        for partial, kind, wide in ((1.0, RotaryEmbedding, 4), (0.5, PartialRotaryEmbedding, 2)):
            rope = get_rope(4, 8, rope_parameters={"partial_rotary_factor": partial})
            assert type(rope) is kind
            query, key = rope(torch.arange(3), torch.cat((x, x), -1), x)
            assert torch.equal(key, x * 2) and query.shape == (3, 8)
            assert seen["rotate"] == ((3, 4), (3, 1, wide), (3, 1, wide), 4)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 70),
    width=st.sampled_from([16, 24, 32, 48, 64, 96]),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 9),
)
def test_compiled_ops_are_the_ops_themselves(
    kernels: CpuKernels, rows: int, width: int, scale: float, seed: int
) -> None:
    """Widths that a kernel takes and such that it does not."""
    draw = torch.Generator().manual_seed(seed)
    x, residual = ((torch.randn(rows, width, generator=draw) * scale).to(BF16) for _ in range(2))
    ops = make_op_set(dtype=BF16, preferred={"rms_norm": ["c"], "silu_and_mul": ["c"]})
    with building(ops, kernels, BF16):
        norm, silu_and_mul = RMSNorm(width, dtype=BF16), SiluAndMul()
        rope = get_rope(width, 128)
    for op, arguments in (
        (norm, (x,)),
        (norm, (x, residual)),
        (silu_and_mul, (x,)),
        (rope, (torch.arange(rows), x, residual)),
    ):
        assert op._method == "forward_provided"
        got, expected = op(*arguments), op.forward_native(*arguments)
        for one, other in zip(_several(got), _several(expected), strict=True):
            torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-2 * scale)


def _several(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
