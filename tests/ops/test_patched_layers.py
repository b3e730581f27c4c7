"""What is fast is left out of a layer where it would pass over what somebody has put in the place
of the project's own methods: before the layer is built, and after it."""

from __future__ import annotations

import functools
import logging
from typing import Any

import pytest
import torch

from hookserve.hookspecs import OpOverride
from hookserve.ops import linear
from hookserve.ops.activation import SiluAndMul
from hookserve.ops.context import set_model_context
from hookserve.ops.cpu_kernels import CpuKernels
from hookserve.ops.custom_op import CustomOp
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.linear import ReplicatedLinear, UnquantizedLinearMethod
from hookserve.ops.packed_linear import can_pack
from hookserve.ops.rotary_embedding import RotaryEmbedding
from op_sets import make_op_set


def build(kernels: CpuKernels | None, make: Any, **options: Any) -> tuple[Any, OpSet]:
    """A layer of a model that has the kernels, and the model's ops."""
    ops = make_op_set(dtype=torch.bfloat16, **options)
    with set_model_context(
        static_forward_context={}, dtype=torch.bfloat16, block_size=16, kernels=kernels, ops=ops
    ):
        return make(), ops


OPS = {
    "rms_norm": (lambda: RMSNorm(32, dtype=torch.bfloat16), (torch.ones(2, 32).bfloat16(),)),
    "silu_and_mul": (SiluAndMul, (torch.ones(2, 64).bfloat16(),)),
    "rotary_embedding": (
        lambda: RotaryEmbedding(32, 32, 8, 10000.0, True, torch.bfloat16),
        (torch.arange(2), torch.ones(2, 32).bfloat16(), torch.ones(2, 32).bfloat16()),
    ),
}
PATCHES = [
    ("rms_norm", RMSNorm, "forward"),
    ("rms_norm", RMSNorm, "forward_native"),
    ("rms_norm", RMSNorm, "_scale"),
    ("silu_and_mul", SiluAndMul, "forward"),
    ("silu_and_mul", SiluAndMul, "forward_native"),
    ("rotary_embedding", RotaryEmbedding, "_rotate"),
]


@pytest.mark.parametrize(("op", "holder", "name"), PATCHES)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_no_kernel_passes_over_a_patch(
    op: str,
    holder: type[CustomOp],
    name: str,
    moment: str,
    kernels: CpuKernels,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make, arguments = OPS[op]
    layer, ops = build(kernels, make)
    assert layer._method == "forward_provided", "there is something fast"
    original, calls = getattr(holder, name), []

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(holder, name, counted)
    with caplog.at_level(logging.INFO, "hookserve"):
        if moment == "after":
            ops.heed_late_patches([layer])
        else:
            layer, ops = build(kernels, make)
    layer(*arguments)
    assert calls and layer._method != "forward_provided"
    why = f"code that is no plugin's overrides {holder.__name__}.{name}"
    assert caplog.messages == [f"plain path for {op} because {why}"]
    (row,) = ops.rows()
    assert (row.implementation, row.owner, row.reason) == ("torch", "hookserve", why)


def test_who_names_a_provider_is_told_of_the_patch_that_it_passes_over(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SiluAndMul, "forward_native", lambda self, x: x)
    layer, ops = build(kernels, SiluAndMul, preferred={"silu_and_mul": ["c"]})
    ops.heed_late_patches([layer])
    assert layer._method == "forward_provided"
    (told,) = caplog.messages
    assert "overrides SiluAndMul.forward_native, which 'c' passes over, as --ir-op-prio" in told


class Mine(SiluAndMul):
    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward_native(x) * 2


def test_an_override_takes_the_place_of_what_is_fast_and_is_named(
    kernels: CpuKernels, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(2, 64).bfloat16()
    plain, _ = build(kernels, SiluAndMul)
    given = {"dist:hookserve:me": [OpOverride("SiluAndMul", Mine)]}
    with caplog.at_level(logging.INFO, "hookserve"):
        layer, _ = build(kernels, SiluAndMul, given=given)
    line = "plain path for silu_and_mul because dist:hookserve:me overrides SiluAndMul"
    assert caplog.messages == [line]
    torch.testing.assert_close(layer(x), plain(x) * 2, rtol=2e-2, atol=2e-2)
    caplog.clear()
    with caplog.at_level(logging.INFO, "hookserve"):
        build(None, SiluAndMul, given=given)
    assert caplog.messages == [], "there is nothing fast without the kernels"


def test_a_layer_nobody_patched_stays_fast_when_others_were(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, ops = build(kernels, OPS["rms_norm"][0])
    monkeypatch.setattr(RMSNorm, "a_helper", lambda self: None, raising=False)
    monkeypatch.setattr(SiluAndMul, "forward", lambda self, x: x)
    ops.heed_late_patches([norm])
    assert norm._method == "forward_provided"


def test_a_wrapper_of_a_linear_method_reads_the_plain_weight(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = UnquantizedLinearMethod.apply

    @functools.wraps(original)
    def doubled(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        return x @ layer.weight.T * 2

    monkeypatch.setattr(UnquantizedLinearMethod, "apply", doubled)
    monkeypatch.setattr(linear, "_log_once", linear._log_once.__wrapped__)
    layer = ReplicatedLinear(24, 40, bias=False, params_dtype=torch.bfloat16)
    layer.weight.data.copy_(torch.eye(40, 24))
    with caplog.at_level(logging.INFO, "hookserve"):
        layer.quant_method.process_weights_after_loading(layer)
    assert not layer.weight.is_mkldnn
    assert "no plugin's overrides UnquantizedLinearMethod.apply" in caplog.text
    assert torch.equal(layer(torch.ones(1, 24).bfloat16())[0][:, :24], torch.full((1, 24), 2.0))
    monkeypatch.undo()
    layer.quant_method.process_weights_after_loading(layer)
    assert layer.weight.is_mkldnn == can_pack(torch.bfloat16)[0]
