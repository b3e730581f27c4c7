"""Products by the kernel, over the memory that oneDNN packed: right, alone in it, and only where
that is laid out as it should be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookserve.ops.context import set_model_context
from hookserve.ops.cpu_kernels import CpuKernels
from hookserve.ops.linear import ReplicatedLinear
from hookserve.ops.packed_linear import can_pack, pack
from hookserve.ops.packed_product import PackedProduct, find_product

BF16 = torch.bfloat16


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def has_kernel(kernels: CpuKernels) -> bool:
    return kernels.can_multiply and can_pack(BF16)[0]


def panels_of(weight: torch.Tensor) -> torch.Tensor:
    columns, inputs = weight.shape
    return weight.view(columns // 64, 64, inputs // 2, 2).transpose(1, 2).contiguous()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("columns", [64, 192, 320])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 12, 41])
def test_products_are_those_of_float64(
    kernels: CpuKernels, rows: int, columns: int, has_bias: bool
) -> None:
    if not kernels.can_multiply:
        return  # there is nothing that could be wrong
    x, weight = draw(rows, 70), draw(columns, 70, seed=1)
    bias = draw(columns, seed=2) * 8 if has_bias else None
    # What is not a number around all that is read would show.
    walled = torch.full((weight.numel() + 128,), float("nan"), dtype=BF16)
    walled[64:-64] = panels_of(weight).view(-1)
    got = kernels.multiply(x, walled[64:].data_ptr(), columns, bias)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-4)
    alone = kernels.multiply(x[-1:], walled[64:].data_ptr(), columns, bias)
    assert torch.equal(alone, got[-1:]), "a row's sums do not depend on the others"


def test_nothing_is_written_beside_the_result(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels.can_multiply:
        return
    walled = torch.full((8, 9, 64 * 3), 7.0, dtype=BF16)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *_: walled[2:6].view(-1, 64 * 3)[:31])
    x, weight = draw(31, 32), draw(192, 32, seed=1)
    got = kernels.multiply(x, panels_of(weight).data_ptr(), 192, None)
    assert (walled.view(-1, 192)[:18] == 7).all()
    assert (walled.view(-1, 192)[18 + 31 :] == 7).all()
    assert not (got == 7).all(-1).any()


def test_only_what_lies_in_panels_is_multiplied_so(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_pack(BF16)[0]:
        return
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    weight = draw(192, 96)
    packed = pack(weight)
    assert (find_product(kernels, packed, weight) is not None) is kernels.can_multiply
    assert find_product(None, packed, weight) is None
    changed = weight.clone()
    changed[70, 5] += 1
    assert find_product(kernels, packed, changed) is None
    for shape in ((190, 96), (192, 97)):
        other = draw(*shape)
        assert find_product(kernels, pack(other), other) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert find_product(kernels, packed, weight) is None, "some threads would only wait"


def test_other_tensors_are_left_to_others(kernels: CpuKernels) -> None:
    if not has_kernel(kernels):
        return
    product = PackedProduct(kernels, pack(draw(192, 96)))
    x, bias = draw(3, 96), draw(192)
    assert product(x, bias) is not NotImplemented
    assert product(x.view(3, 1, 96), bias).shape == (3, 1, 192)
    for wrong in (x.float(), x.t().contiguous().t(), draw(3, 98)):
        assert product(wrong, bias) is NotImplemented
    for wrong in (bias.float(), bias[:64]):
        assert product(x, wrong) is NotImplemented


def test_a_layer_of_a_model_with_kernels_multiplies_by_them(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    layers = []
    for given in (kernels, None):
        with set_model_context(static_forward_context={}, dtype=BF16, block_size=16, kernels=given):
            layer = ReplicatedLinear(96, 192, bias=True, params_dtype=BF16, prefix="a")
        layer.weight.data.copy_(draw(192, 96))
        layer.bias.data.copy_(draw(192, seed=1))
        layer.quant_method.process_weights_after_loading(layer)
        layers.append(layer)
    counted = []
    plain = kernels.multiply

    def counting(*args: Any) -> torch.Tensor:
        counted.append(args)
        return plain(*args)

    monkeypatch.setattr(kernels, "multiply", counting)
    (got, _), (expected, _) = (layer(draw(5, 96, seed=2)) for layer in layers)
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=2**-7)
    assert len(counted) == has_kernel(kernels)
