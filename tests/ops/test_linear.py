"""Linear layers: the ranks' parts together equal the whole, and packing changes no value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hookserve.ops.context import TensorParallelGroup, set_tp_group
from hookserve.ops.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from hookserve.ops.packed_linear import can_pack, pack, packed_linear


def load(layer: Any, weight: torch.Tensor, *shard: Any, bias: torch.Tensor | None = None) -> None:
    layer.weight.weight_loader(layer.weight, weight, *shard)
    if bias is not None:
        layer.bias.weight_loader(layer.bias, bias, *shard)


def test_replicated_computes_the_plain_product() -> None:
    layer = ReplicatedLinear(5, 3)
    weight, bias, x = torch.randn(3, 5), torch.randn(3), torch.randn(2, 5)
    load(layer, weight, bias=bias)
    output, left_over = layer(x)
    torch.testing.assert_close(output, x @ weight.T + bias)
    assert left_over is None


def test_a_skipped_bias_is_returned_instead_of_added() -> None:
    layer = ReplicatedLinear(5, 3, skip_bias_add=True)
    weight, bias, x = torch.randn(3, 5), torch.randn(3), torch.randn(2, 5)
    load(layer, weight, bias=bias)
    output, left_over = layer(x)
    torch.testing.assert_close(output, x @ weight.T)
    assert torch.equal(left_over, bias)


def test_return_bias_false_returns_the_output_alone() -> None:
    layer = ReplicatedLinear(5, 3, bias=False, return_bias=False)
    load(layer, torch.ones(3, 5))
    assert torch.equal(layer(torch.ones(1, 5)), torch.full((1, 3), 5.0))


def test_column_slices_of_two_ranks_join_to_the_whole() -> None:
    weight, bias, x = torch.randn(6, 5), torch.randn(6), torch.randn(2, 5)
    parts = []
    for rank in range(2):
        with set_tp_group(TensorParallelGroup(rank, 2)):
            layer = ColumnParallelLinear(5, 6)
        assert (layer.tp_rank, layer.tp_size) == (rank, 2)
        load(layer, weight, bias=bias)
        parts.append(layer(x)[0])
    torch.testing.assert_close(torch.cat(parts, -1), F.linear(x, weight, bias))


def test_row_slices_of_two_ranks_sum_to_the_whole() -> None:
    weight, bias, x = torch.randn(3, 8), torch.randn(3), torch.randn(2, 8)
    total = torch.zeros(2, 3)
    for rank in range(2):
        with set_tp_group(TensorParallelGroup(rank, 2)):
            layer = RowParallelLinear(8, 3, skip_bias_add=True, reduce_results=False)
        load(layer, weight, bias=bias)
        total += layer(x[:, rank * 4 : rank * 4 + 4])[0]
    torch.testing.assert_close(total, x @ weight.T)


def test_only_the_first_rank_adds_the_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorParallelGroup, "all_reduce", lambda self, x: x)
    weight, bias, x = torch.randn(3, 8), torch.randn(3), torch.randn(2, 8)
    total = torch.zeros(2, 3)
    for rank in range(2):
        with set_tp_group(TensorParallelGroup(rank, 2)):
            layer = RowParallelLinear(8, 3, input_is_parallel=False)
        load(layer, weight, bias=bias)
        total += layer(x)[0]
    torch.testing.assert_close(total, F.linear(x, weight, bias))


def test_merged_parts_land_in_their_places() -> None:
    first, second, x = torch.randn(4, 5), torch.randn(2, 5), torch.randn(3, 5)
    for rank in range(2):
        with set_tp_group(TensorParallelGroup(rank, 2)):
            layer = MergedColumnParallelLinear(5, [4, 2], bias=False)
        load(layer, second, 1)
        load(layer, first, 0)
        expected = torch.cat([first[rank * 2 : rank * 2 + 2], second[rank : rank + 1]])
        torch.testing.assert_close(layer(x)[0], x @ expected.T)


def test_a_fused_checkpoint_weight_is_split() -> None:
    first, second = torch.randn(4, 5), torch.randn(2, 5)
    layer = MergedColumnParallelLinear(5, [4, 2], bias=False)
    load(layer, torch.cat([first, second]))
    assert torch.equal(layer.weight, torch.cat([first, second]))


def test_a_weight_that_holds_several_parts_is_split_among_them() -> None:
    q, k, v, x, y, z = (torch.randn(rows, 5) for rows in (12, 6, 6, 4, 2, 8))
    for rank in range(2):
        with set_tp_group(TensorParallelGroup(rank, 2)):
            qkv = QKVParallelLinear(5, 3, 4, 2, bias=False)
            merged = MergedColumnParallelLinear(5, [4, 2, 8], bias=False)
        load(qkv, torch.cat([v, k]), ["v", "k"])
        load(qkv, q, "q")
        load(merged, torch.cat([x, z]), [0, 2])
        load(merged, y, 1)
        assert torch.equal(qkv.weight, torch.cat([w.chunk(2)[rank] for w in (q, k, v)]))
        assert torch.equal(merged.weight, torch.cat([w.chunk(2)[rank] for w in (x, y, z)]))


def test_a_fused_weight_of_other_parts_is_refused() -> None:
    layer = QKVParallelLinear(5, 3, 4, 2, bias=False, prefix="a.qkv_proj")
    with pytest.raises(ValueError, match=r"a\.qkv_proj: a weight of 20 rows .* 12, 6, 6"):
        load(layer, torch.zeros(20, 5))
    with pytest.raises(ValueError, match=r"a\.qkv_proj: a weight of 20 rows .* 6, 6"):
        load(layer, torch.zeros(20, 5), ["k", "v"])


def test_qkv_of_two_ranks_takes_each_its_heads() -> None:
    head, hidden = 3, 5
    q, k, v = (torch.randn(heads * head, hidden) for heads in (4, 2, 2))
    for rank in range(2):
        with set_tp_group(TensorParallelGroup(rank, 2)):
            layer = QKVParallelLinear(hidden, head, 4, 2, bias=False)
        for name, weight in zip("kqv", (k, q, v), strict=True):
            load(layer, weight, name)
        expected = [
            q[rank * 6 : rank * 6 + 6], k[rank * 3 : rank * 3 + 3], v[rank * 3 : rank * 3 + 3]
        ]  # fmt: skip
        assert torch.equal(layer.weight, torch.cat(expected))


def test_ranks_share_key_heads_that_are_too_few() -> None:
    k = torch.arange(2.0)[:, None].expand(2, 5)  # two key heads of one row
    held = []
    for rank in range(4):
        with set_tp_group(TensorParallelGroup(rank, 4)):
            layer = QKVParallelLinear(5, 1, 4, 2, bias=False)
        load(layer, torch.zeros(4, 5), "q")
        load(layer, k, "k")
        held.append(layer.weight[1, 0].item())
    assert held == [0.0, 0.0, 1.0, 1.0]


def test_sizes_that_do_not_divide_are_refused() -> None:
    with set_tp_group(TensorParallelGroup(0, 2)):
        with pytest.raises(ValueError, match=r"model\.up: 5 outputs .* 2 ranks"):
            ColumnParallelLinear(4, 5, prefix="model.up")
        with pytest.raises(ValueError, match=r"model\.down: 5 inputs .* 2 ranks"):
            RowParallelLinear(5, 4, prefix="model.down")


def test_a_weight_of_another_shape_is_refused_by_name() -> None:
    layer = ReplicatedLinear(5, 3, prefix="model.x")
    with pytest.raises(ValueError, match=r"model\.x has shape \[5, 3\].*expects \[3, 5\]"):
        load(layer, torch.zeros(5, 3))


def test_a_method_that_a_quantization_gives_is_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hookserve.ops")

    class Doubling(UnquantizedLinearMethod):
        def apply(self, layer: nn.Module, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
            return 2 * F.linear(x, layer.weight, bias)

    class Config:
        def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
            return Doubling() if prefix == "mine" else None

    layer = ReplicatedLinear(2, 2, bias=False, quant_config=Config(), prefix="mine")
    load(layer, torch.eye(2))
    layer.quant_method.process_weights_after_loading(layer)
    assert not layer.weight.is_mkldnn  # its apply reads the plain weight
    assert "Doubling.apply reads the plain ones" in caplog.text
    assert torch.equal(layer(torch.ones(1, 2))[0], torch.full((1, 2), 2.0))
    with pytest.raises(ValueError, match=r"Config gave no method .* 'other'"):
        ReplicatedLinear(2, 2, quant_config=Config(), prefix="other")


@pytest.mark.parametrize("shape", [(1, 576, 960), (3, 40, 24), (7, 33, 17), (0, 8, 8)])
def test_a_packed_weight_gives_the_same_products(shape: tuple[int, int, int]) -> None:
    rows, inputs, outputs = shape
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs).bfloat16()
    bias, x = torch.randn(outputs).bfloat16(), torch.randn(rows, inputs).bfloat16()
    want = F.linear(x.double(), weight.double(), bias.double())
    got = packed_linear(x, pack(weight), bias) if can_pack(torch.bfloat16)[0] else want.bfloat16()
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=0.02 * inputs**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_are_packed_where_the_machine_can(dtype: torch.dtype) -> None:
    layer = ReplicatedLinear(40, 24, bias=False, params_dtype=dtype)
    weight = torch.randn(24, 40).to(dtype)
    load(layer, weight)
    layer.quant_method.process_weights_after_loading(layer)
    assert layer.weight.is_mkldnn == can_pack(dtype)[0]
    x = torch.randn(3, 40).to(dtype)
    torch.testing.assert_close(layer(x)[0], x @ weight.T, rtol=2e-2, atol=2e-2)


def test_float32_keeps_the_more_exact_product() -> None:
    able, reason = can_pack(torch.float32)
    assert not able
    assert "exact" in reason


def test_unsupported_dtypes_are_left_plain_with_a_reason() -> None:
    able, reason = can_pack(torch.float64)
    assert not able
    assert "float64" in reason


def test_a_layer_of_a_packages_own_is_made_as_the_base_is() -> None:
    class Twice(LinearBase):
        def __init__(self, size: int) -> None:
            super().__init__(size, size, False, torch.float64, None, "twice", return_bias=False)

        def forward(self, x: torch.Tensor) -> Any:
            return self._result(x * 2)

    layer = Twice(3)
    assert (layer.prefix, layer.params_dtype, layer.tp_size) == ("twice", torch.float64, 1)
    assert layer(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert isinstance(LinearBase(3, 2).quant_method, UnquantizedLinearMethod)
