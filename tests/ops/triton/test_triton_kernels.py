"""Norms, gated activations, rotations and cache writes in Triton's interpreter, each against its
torch twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookserve.engine.model_runner import allocate_lazily
from hookserve.ops.activation import GeluAndMul, SiluAndMul
from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm
from hookserve.ops.rotary_embedding import PartialRotaryEmbedding, RotaryEmbedding, get_rope
from hookserve.ops.triton.activations import gelu_and_mul, silu_and_mul
from hookserve.ops.triton.cache_writes import write_cache
from hookserve.ops.triton.norms import MAX_WIDTH, rms_norm
from hookserve.ops.triton.rotations import rotate
from kernel_inputs import DTYPES, apart, by_column, check_close, draw

# On a GPU, where a number overflows, nothing says so; the interpreter is numpy.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

F32, BF16 = torch.float32, torch.bfloat16
some = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
dtypes, orders = st.sampled_from(DTYPES), st.sampled_from([lambda x: x, apart, by_column])


def make_norm(kind: type[RMSNorm], width: int, dtype: torch.dtype) -> RMSNorm:
    norm = kind(width, eps=1e-5, dtype=dtype)
    norm.weight.data = draw(width, dtype=dtype, seed=3)
    return norm


# -- norms -----------------------------------------------------------------------------------------


@some
@given(rows=st.integers(1, 4), width=st.integers(1, 200), dtype=dtypes, order=orders, other=orders)
@pytest.mark.parametrize("kind", [RMSNorm, GemmaRMSNorm])
def test_norms_are_the_layers(
    canaries: Any, kind: type[RMSNorm], rows: int, width: int, dtype: Any, order: Any, other: Any
) -> None:
    canaries.forget()
    norm = make_norm(kind, width, dtype)
    plain, residual = (draw(rows, width, dtype=dtype, seed=seed) for seed in (1, 2))
    x, there = order(plain), other(residual)
    is_gemma = kind is GemmaRMSNorm
    alone, nothing = rms_norm(x, None, norm.weight, 1e-5, is_gemma=is_gemma)
    canaries.check(1)
    joined, total = rms_norm(x, there, norm.weight, 1e-5, is_gemma=is_gemma)
    canaries.check(2)
    assert nothing is None and total is not None
    check_close(alone, norm.forward_native(plain))
    expected, expected_total = norm.forward_native(plain, residual)
    check_close(joined, expected)
    check_close(total, expected_total)
    assert torch.equal(x, plain) and torch.equal(there, residual)


def test_norms_take_any_number_of_dimensions_and_the_widest_row() -> None:
    norm = make_norm(RMSNorm, 12, F32)
    x = draw(2, 3, 12)
    got, _ = rms_norm(x, None, norm.weight, 1e-5)
    check_close(got, norm.forward_native(x))
    norm = make_norm(RMSNorm, MAX_WIDTH, BF16)
    x = draw(1, MAX_WIDTH, dtype=BF16)
    got, _ = rms_norm(x, None, norm.weight, 1e-5)
    check_close(got, norm.forward_native(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_unusual_rows(dtype: torch.dtype) -> None:
    """Zeros; numbers whose squares float16 does not hold; one that is no number, in its own row
    alone."""
    x = draw(4, 9, dtype=dtype)
    x[0], x[1] = 0, x[1] * 6000
    x[2, 4] = torch.nan
    norm = make_norm(RMSNorm, 9, dtype)
    got, _ = rms_norm(x, None, norm.weight, 1e-5)
    check_close(got, norm.forward_native(x))
    assert got.isnan().any(-1).tolist() == [False, False, True, False]


def test_rows_may_be_further_apart_than_32_bits_count() -> None:
    stride = (1 << 30) + 8
    memory = allocate_lazily((2 * stride + 16,), torch.float16, torch.device("cpu"))
    x = memory.as_strided((3, 16), (stride, 1))
    x.copy_(draw(3, 16))
    norm = make_norm(RMSNorm, 16, torch.float16)
    got, _ = rms_norm(x, None, norm.weight, 1e-5)
    assert torch.equal(got, norm.forward_native(x.contiguous()))
    assert torch.equal(silu_and_mul(x), SiluAndMul().forward_native(x.contiguous()))
    cos, sin = draw(3, 1, 8, dtype=torch.float16), draw(3, 1, 8, dtype=torch.float16, seed=1)
    assert torch.equal(rotate(x, cos, sin, 8), rotate(x.contiguous(), cos, sin, 8))


# -- gated activations -----------------------------------------------------------------------------


@some
@given(rows=st.integers(1, 4), width=st.integers(1, 150), dtype=dtypes, order=orders)
@pytest.mark.parametrize("kind", ["silu", "none", "tanh"])
def test_gated_activations_are_the_layers(
    canaries: Any, kind: str, rows: int, width: int, dtype: Any, order: Any
) -> None:
    canaries.forget()
    plain = draw(rows, 2 * width, dtype=dtype) * 4
    x = order(plain)
    if kind == "silu":
        got, expected = silu_and_mul(x), SiluAndMul().forward_native(plain)
    else:
        got, expected = gelu_and_mul(x, kind), GeluAndMul(kind).forward_native(plain)
    canaries.check(1)
    check_close(got, expected, scale=16)  # of gate times up; 1 + erf(-4) is 1 minus nearly 1


@pytest.mark.parametrize("kind", ["silu", "none", "tanh"])
def test_gates_far_from_zero_are_open_or_closed(kind: str) -> None:
    gates = torch.tensor([[-1e4, -200.0, -30.0, -0.0, 30.0, 200.0, 1e4, torch.nan]])
    x = torch.cat((gates, torch.ones_like(gates)), -1)
    got = silu_and_mul(x) if kind == "silu" else gelu_and_mul(x, kind)
    expected = gates.clamp(min=0)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-10, equal_nan=True)


def test_wide_rows_are_several_programs(canaries: Any) -> None:
    x = draw(2, 2 * 2500, dtype=BF16)
    got = silu_and_mul(x)
    canaries.check(1)
    check_close(got, SiluAndMul().forward_native(x))


# -- rotations -------------------------------------------------------------------------------------


@some
@given(
    tokens=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 3, 9]),
    size=st.sampled_from([2, 6, 32, 80, 96]),
    part=st.sampled_from([1.0, 0.5, 0.34]),
    dtype=dtypes,
    is_apart=st.booleans(),
)
def test_rotations_are_the_layers(
    canaries: Any, tokens: int, heads: int, size: int, part: float, dtype: Any, is_apart: bool
) -> None:
    canaries.forget()
    turning = max(2, int(size * part) // 2 * 2)
    parameters = {"partial_rotary_factor": turning / size}
    rope = get_rope(size, 4096, rope_parameters=parameters)
    assert type(rope) is (RotaryEmbedding if turning == size else PartialRotaryEmbedding)
    plain = draw(tokens, heads * size, dtype=dtype)
    cos, sin = rope._rotation(torch.tensor([0, 5, 4000])[:tokens], dtype)
    x = apart(plain) if is_apart else plain
    got = rotate(x, cos, sin, size)
    canaries.check(1)
    check_close(got, rope._rotate(plain, cos, sin), scale=4)  # of what is turned
    assert torch.equal(x, plain)


def test_many_heads_are_several_programs(canaries: Any) -> None:
    rope = get_rope(128, 64)
    x = draw(1, 70 * 128)
    cos, sin = rope._rotation(torch.tensor([7]), F32)
    got = rotate(x, cos, sin, 128)
    canaries.check(1)
    check_close(got, rope._rotate(x, cos, sin))


# -- the cache -------------------------------------------------------------------------------------


@some
@given(
    heads=st.sampled_from([1, 2, 3]),
    size=st.sampled_from([1, 32, 80, 96, 256]),
    block_size=st.sampled_from([1, 3, 16]),
    dtype=dtypes,
    slot_dtype=st.sampled_from([torch.int64, torch.int32]),
    seed=st.integers(0, 9),
)
def test_the_cache_is_written_where_the_slots_say(
    heads: int, size: int, block_size: int, dtype: Any, slot_dtype: Any, seed: int
) -> None:
    """And nowhere else; keys and values lie in the rows of one projection."""
    tokens, blocks = 3, 5
    order = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(seed))
    slots = torch.stack((order[:tokens], order[:tokens]), -1).to(slot_dtype)[:, 0]
    merged = apart(draw(tokens, 2 * heads * size, dtype=dtype))
    key, value = (x.view(tokens, heads, size) for x in merged.chunk(2, dim=-1))
    memory = torch.full((blocks + 2, 2, heads, block_size, size), torch.nan, dtype=dtype)
    cache = memory[1:-1]
    expected = memory.clone()
    for row, slot in enumerate(slots.tolist()):
        expected[1 + slot // block_size, 0, :, slot % block_size] = key[row]
        expected[1 + slot // block_size, 1, :, slot % block_size] = value[row]
    write_cache(cache, key, value, slots)
    torch.testing.assert_close(memory, expected, rtol=0, atol=0, equal_nan=True)


def test_a_cache_may_be_larger_than_32_bits_count() -> None:
    heads, block_size, size = 2, 16, 64
    block = 2 * heads * block_size * size
    blocks = (1 << 31) // block + 3
    shape = (blocks, 2, heads, block_size, size)
    cache = allocate_lazily(shape, torch.float16, torch.device("cpu"))
    key, value = (draw(1, heads, size, dtype=torch.float16, seed=seed) for seed in (1, 2))
    write_cache(cache, by_column(key), value, torch.tensor([blocks * block_size - 1]))
    assert torch.equal(cache[-1, 0, :, -1], key[0]) and torch.equal(cache[-1, 1, :, -1], value[0])


def test_keys_and_values_that_do_not_fit_are_refused() -> None:
    cache, key = torch.zeros(4, 2, 2, 8, 32), draw(3, 2, 32)
    slots = torch.tensor([1, 2, 3])
    for wrong in (key[:2], key.to(BF16), key[:, :1], key.to("meta")):
        for pair in ((wrong, key), (key, wrong)):
            with pytest.raises(ValueError, match=r"expected \(3, 2, 32\) in torch.float32 on cpu"):
                write_cache(cache, *pair, slots)
    assert not cache.any()


def test_nothing_comes_of_nothing() -> None:
    norm = make_norm(RMSNorm, 8, F32)
    got, total = rms_norm(draw(0, 8), draw(0, 8), norm.weight, 1e-5)
    assert got.shape == (0, 8) and total is not None and total.shape == (0, 8)
    assert silu_and_mul(draw(0, 8)).shape == gelu_and_mul(draw(0, 8), "none").shape == (0, 4)
    assert rotate(draw(0, 8), draw(0, 1, 4), draw(0, 1, 4), 4).shape == (0, 8)
    cache = torch.zeros(2, 2, 1, 4, 8)
    write_cache(cache, draw(0, 1, 8), draw(0, 1, 8), torch.zeros(0, dtype=torch.int64))
    assert not cache.any()
