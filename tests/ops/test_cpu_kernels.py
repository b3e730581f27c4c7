"""Compiled kernels against their torch twins, and attention against float64."""

from __future__ import annotations

import pytest
import torch

from hookserve.ops.activation import SiluAndMul
from hookserve.ops.context import AttentionMetadata
from hookserve.ops.cpu_kernels import SPLIT, CpuKernels
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.rotary_embedding import RotaryEmbedding

BF16 = torch.bfloat16
BLOCK = 16


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


@pytest.mark.parametrize("width", [16, 48, 576])
@pytest.mark.parametrize("rows", [1, 3, 50])
def test_norms_round_as_the_layer_does(kernels: CpuKernels, rows: int, width: int) -> None:
    norm = RMSNorm(width, eps=1e-5, dtype=BF16)
    norm.weight.data = draw(width, seed=1)
    x, residual = draw(rows, width), draw(rows, width, seed=2)
    alone, nothing = kernels.rms_norm(x, None, norm.weight, 1e-5)
    joined, total = kernels.rms_norm(x, residual, norm.weight, 1e-5)
    assert nothing is None
    assert total is not None
    expected, expected_total = norm(x, residual)
    assert torch.equal(total, expected_total)
    # Sums in another order may round differently: by one unit in the last place, and rarely.
    for got, wanted in ((alone, norm(x)), (joined, expected)):
        assert (got != wanted).float().mean() <= 0.001
        torch.testing.assert_close(got, wanted, rtol=2**-7, atol=0)


def test_activations_round_as_the_layer_does(kernels: CpuKernels) -> None:
    x = torch.cat((draw(5, 96), torch.tensor([[0.0, -0.0, 1e-30] * 32], dtype=BF16)))
    assert torch.equal(kernels.silu_and_mul(x), SiluAndMul()(x))
    far = draw(5, 96) * 40
    torch.testing.assert_close(kernels.silu_and_mul(far), SiluAndMul()(far), rtol=2**-7, atol=1e-30)


@pytest.mark.parametrize("size", [32, 64, 128])
def test_rotations_round_as_the_layer_does(kernels: CpuKernels, size: int) -> None:
    rope = RotaryEmbedding(size, size, 8192, 10000.0, True, BF16)
    positions = torch.tensor([0, 1, 77, 5000])
    merged = draw(4, 7 * size)
    part = merged[:, size : 4 * size]  # rows of one width inside rows of another
    expected, _ = rope(positions, part, part)
    cos, sin = rope._rotation(positions, BF16)
    assert torch.equal(kernels.rotate(part, cos, sin, size), expected)


def test_what_is_not_a_number_stays_so(kernels: CpuKernels) -> None:
    x = draw(2, 64)
    x[1, 3] = float("nan")
    norm, _ = kernels.rms_norm(x, None, torch.ones(64, dtype=BF16), 1e-5)
    assert norm.isnan().any(-1).tolist() == [False, True]
    gated = kernels.silu_and_mul(x)
    assert torch.equal(gated.isnan(), SiluAndMul()(x).isnan())


class Cache:
    """A cache whose blocks lie in disorder, and what a step of it is told."""

    def __init__(self, lengths: list[int], heads: int, size: int) -> None:
        longest = -(-max(lengths) // BLOCK)
        count = len(lengths) * longest
        order = torch.randperm(count, generator=torch.Generator().manual_seed(3)) + 1
        self.lengths = lengths
        self.tables = order.view(len(lengths), longest)
        self.blocks = draw(count + 1, 2, heads, BLOCK, size, seed=4)

    def metadata(self, rows: slice = slice(None)) -> AttentionMetadata:
        lengths = self.lengths[rows]
        count = len(lengths)
        starts, slots = list(range(count + 1)), torch.zeros(count, dtype=torch.int64)
        tables = self.tables[rows]
        return AttentionMetadata(count, count, count, starts, lengths, tables, slots, BLOCK)

    def attended(
        self, query: torch.Tensor, scale: float, window: int | None, cap: float | None
    ) -> torch.Tensor:
        """By the definition, in float64."""
        results = []
        for row, length in enumerate(self.lengths):
            seen = self.blocks[self.tables[row]].double().permute(1, 2, 0, 3, 4).flatten(2, 3)
            start = 0 if window is None else max(0, length - window)
            keys, values = seen[:, :, start:length]
            scores = query[row].double() @ keys.transpose(1, 2) * scale
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            results.append(torch.softmax(scores, dim=-1) @ values)
        return torch.stack(results)


@pytest.mark.parametrize(
    ("lengths", "heads", "group", "size", "window", "cap"),
    [
        ([1], 1, 1, 64, None, None),
        ([1, 15, 16, 17, SPLIT - 1, SPLIT, SPLIT + 1, 3 * SPLIT + 5], 3, 3, 64, None, None),
        ([40, 300], 2, 4, 128, None, None),
        ([40, 300], 2, 2, 128, None, None),
        ([300, 31], 2, 9, 32, None, None),
        ([70], 1, 17, 96, None, None),
        ([270, 9], 2, 5, 256, None, None),
        ([5, 100, 2 * SPLIT + 3], 2, 2, 64, 40, None),
        ([300, 2 * SPLIT + 1], 2, 1, 64, SPLIT, None),
        ([5, 300], 2, 3, 64, None, 3.0),
        ([600, 7], 1, 4, 64, 300, 20.0),
    ],
)
def test_attention_is_that_of_float64(
    kernels: CpuKernels,
    lengths: list[int],
    heads: int,
    group: int,
    size: int,
    window: int | None,
    cap: float | None,
) -> None:
    cache, query = Cache(lengths, heads, size), draw(len(lengths), heads, group, size, seed=5)
    scale = size**-0.5
    got = kernels.attend_decode(
        query, cache.blocks, cache.metadata(), scale, window=window, soft_cap=cap
    )
    expected = cache.attended(query, scale, window, cap)
    # Half a unit in the last place of bfloat16: everything before is float32.
    torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-5)


def test_attention_does_not_depend_on_the_batch(kernels: CpuKernels) -> None:
    cache, query = Cache([700, 3, 257, 256], 3, 64), draw(4, 3, 3, 64, seed=5)
    together = kernels.attend_decode(query, cache.blocks, cache.metadata(), 0.125)
    for row in range(4):
        rows = slice(row, row + 1)
        alone = kernels.attend_decode(query[rows], cache.blocks, cache.metadata(rows), 0.125)
        assert torch.equal(alone[0], together[row])


def test_large_scores_leave_one_weight(kernels: CpuKernels) -> None:
    """Scores of 10^4 apart: the largest one takes all, and nothing overflows."""
    cache = Cache([40], 1, 32)
    query = draw(1, 1, 1, 32, seed=5) * 1000
    got = kernels.attend_decode(query, cache.blocks, cache.metadata(), 10.0)
    expected = cache.attended(query, 10.0, None, None)
    torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-5)


def test_the_cache_is_written_where_the_slots_say(kernels: CpuKernels) -> None:
    cache = torch.zeros(4, 2, 3, BLOCK, 32, dtype=BF16)
    merged = draw(3, 10 * 32)
    key = merged[:, 32 : 4 * 32].view(3, 3, 32)
    value = merged[:, 5 * 32 : 8 * 32].view(3, 3, 32)
    slots = torch.tensor([0, 3 * BLOCK + 15, BLOCK + 1])
    kernels.write_cache(cache, key, value, slots)
    for row, slot in enumerate(slots.tolist()):
        assert torch.equal(cache[slot // BLOCK, 0, :, slot % BLOCK], key[row])
        assert torch.equal(cache[slot // BLOCK, 1, :, slot % BLOCK], value[row])
    assert cache.any(-1).sum() == 3 * 2 * 3


def swapped(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, in memory column by column."""
    return x.t().contiguous().t()


@pytest.mark.parametrize(
    ("x", "residual", "weight", "is_taken"),
    [
        (draw(3, 48), draw(3, 48), draw(48), True),
        (draw(3, 48).float(), None, draw(48), False),
        (draw(3, 48), None, draw(48).float(), False),
        (draw(3, 48), None, draw(16), False),
        (draw(3, 48), None, draw(48).to("meta"), False),
        (draw(3, 40), None, draw(40), False),
        (swapped(draw(3, 48)), None, draw(48), False),
        (draw(3, 48), draw(1, 48), draw(48), False),
        (draw(3, 48), draw(3, 48).float(), draw(48), False),
        (draw(3, 48), swapped(draw(3, 48)), draw(48), False),
    ],
)
def test_norms_of_other_tensors_are_torchs(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, is_taken: bool
) -> None:
    assert CpuKernels.takes_norm(x, residual, weight) is is_taken


@pytest.mark.parametrize(
    ("x", "angles", "is_taken"),
    [
        (draw(4, 96), draw(4, 1, 32), True),
        (draw(4, 96).float(), draw(4, 1, 32), False),
        (draw(4, 96), draw(4, 1, 32).float(), False),
        (draw(4, 96), draw(1, 1, 32), False),
        (draw(4, 96), draw(4, 1, 64), False),
        (draw(4, 3, 32), draw(4, 1, 32), False),
        (draw(4, 80), draw(4, 1, 32), False),
        (swapped(draw(4, 96)), draw(4, 1, 32), False),
    ],
)
def test_rotations_of_other_tensors_are_torchs(
    x: torch.Tensor, angles: torch.Tensor, is_taken: bool
) -> None:
    assert CpuKernels.takes_rotation(x, angles, angles, 32) is is_taken


def test_attention_reads_rows_in_any_order_of_memory(kernels: CpuKernels) -> None:
    cache, query = Cache([5, 40], 2, 64), draw(2, 2, 3, 64, seed=5)
    apart = query.transpose(1, 3).contiguous().transpose(1, 3)
    got = kernels.attend_decode(apart, cache.blocks, cache.metadata(), 0.125)
    assert torch.equal(got, kernels.attend_decode(query, cache.blocks, cache.metadata(), 0.125))
    blocks, key = [torch.zeros(4, 2, 2, BLOCK, 64, dtype=BF16) for _ in "ab"], draw(3, 2, 64)
    slots = torch.tensor([17, 40, 5])
    kernels.write_cache(blocks[0], key, key, slots)
    turned = key.transpose(1, 2).contiguous().transpose(1, 2)
    kernels.write_cache(blocks[1], turned, turned, slots)
    assert torch.equal(*blocks)


def test_tables_and_slots_may_be_of_another_type(kernels: CpuKernels) -> None:
    cache, query = Cache([5, 40], 2, 64), draw(2, 2, 3, 64, seed=5)
    metadata = cache.metadata()
    expected = kernels.attend_decode(query, cache.blocks, metadata, 0.125)
    metadata.block_tables = metadata.block_tables.to(torch.int32).t().contiguous().t()
    metadata.cache.clear()
    assert torch.equal(kernels.attend_decode(query, cache.blocks, metadata, 0.125), expected)
    blocks, key = torch.zeros(4, 2, 2, BLOCK, 64, dtype=BF16), draw(3, 2, 64)
    slots = torch.tensor([[17, 0], [40, 0], [5, 0]], dtype=torch.int32)[:, 0]
    kernels.write_cache(blocks, key, key, slots)
    for at, slot in enumerate(slots.tolist()):
        assert torch.equal(blocks[slot // BLOCK, 0, :, slot % BLOCK], key[at])


def test_attention_refuses_what_does_not_fit_the_step(kernels: CpuKernels) -> None:
    cache, query = Cache([5, 40], 2, 64), draw(3, 2, 3, 64)
    with pytest.raises(ValueError, match=r"queries in torch.bfloat16 on cpu, of 3 tokens; exp"):
        kernels.attend_decode(query, cache.blocks, cache.metadata(), 0.125)
    with pytest.raises(ValueError, match=r"queries in torch.float32 .* expected torch.bfloat16"):
        kernels.attend_decode(query[:2].float(), cache.blocks, cache.metadata(), 0.125)
    key = draw(2, 2, 64)
    for wrong in (key[:1], key.float()):
        with pytest.raises(ValueError, match=r"keys and values .* and 2 tokens"):
            kernels.write_cache(cache.blocks, key, wrong, torch.tensor([0, 1]))
