"""Paged attention in Triton's interpreter, against the ops' definitions and the torch backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import triton

from attention_steps import make_step
from hookserve.ops.attention import Attention
from hookserve.ops.attention_backend import AttentionBackend
from hookserve.ops.context import (
    ForwardContext,
    set_forward_context,
    set_model_context,
)
from hookserve.ops.op_references import paged_attention_decode, paged_attention_prefill
from hookserve.ops.paged_attention import PagedAttentionBackend
from hookserve.ops.triton.attention import TritonAttentionBackend
from hookserve.ops.triton.paged_attention_decode import PART, attend_decode
from hookserve.ops.triton.paged_attention_prefill import attend_prefill
from kernel_inputs import apart, draw

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SCALE = 0.3
ELSEWHERE = 1 << 40
"""The number of a block far outside of every cache."""
TOLERANCES = {F32: 3e-6, F16: 2e-3, BF16: 4e-2}


@dataclass
class Batch:
    """Sequences with new tokens over positions ``[start, end)``; nothing but what they see is a
    number, and nothing but their blocks a block."""

    query: torch.Tensor
    cache: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor

    def attend(self, **how: Any) -> torch.Tensor:
        """By the kernels. Nothing is written beside the output."""
        memory = torch.full((self.query.numel() + 128,), 7.0, dtype=self.query.dtype)
        output = memory[64:-64].view(self.query.shape).fill_(torch.nan)
        news = self.starts.diff().tolist()
        given = (self.query, self.cache, self.tables)
        if all(new == 1 for new in news):
            longest = max(self.lengths.tolist(), default=0)
            attend_decode(*given, self.lengths, output, SCALE, longest=longest, **how)
        else:
            attend_prefill(*given, self.starts, self.lengths, output, SCALE, most=max(news), **how)
        assert (memory[:64] == 7.0).all() and (memory[-64:] == 7.0).all()
        return output

    def by_definition(
        self, window: int | None = None, soft_cap: float | None = None
    ) -> torch.Tensor:
        query, cache = self.query.float(), self.cache.float()
        return paged_attention_prefill(
            query, cache, self.tables, self.lengths, self.starts, SCALE, window, soft_cap
        )

    def check(self, **how: Any) -> None:
        got, expected = self.attend(**how), self.by_definition(**how)
        tolerance = TOLERANCES[got.dtype]
        torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)


def make_batch(
    spans: list[tuple[int, int]],
    *,
    size: int = 32,
    group: int = 2,
    kv_heads: int = 2,
    block: int = 4,
    dtype: torch.dtype = F32,
) -> Batch:
    counts = [-(-end // block) for _, end in spans]
    cache = torch.full((sum(counts) + 2, 2, kv_heads, block, size), torch.nan, dtype=dtype)
    order = (torch.randperm(sum(counts)) + 1).tolist()
    tables = torch.full((len(spans), max(counts) + 2), ELSEWHERE)
    tables[:, -1] = -ELSEWHERE
    for row, (_, end) in enumerate(spans):
        for at in range(counts[row]):
            tables[row, at] = number = order.pop()
            held = min(block, end - at * block)
            seed = row * 1000 + at
            cache[number, :, :, :held] = draw(2, kv_heads, held, size, dtype=dtype, seed=seed)
    news = torch.tensor([end - start for start, end in spans])
    # The queries of a merged projection: rows are further apart than they are long.
    rows = apart(draw(int(news.sum()), kv_heads * group * size, dtype=dtype))
    return Batch(
        rows.view(-1, kv_heads * group, size),
        cache,
        tables,
        torch.tensor([end for _, end in spans], dtype=torch.int32),
        torch.nn.functional.pad(news.cumsum(0), (1, 0)).int(),
    )


# -- kernels ---------------------------------------------------------------------------------------

SHAPES = [
    (32, 1, 2, 1, F32),
    (64, 3, 3, 16, F32),
    (80, 2, 2, 5, F16),
    (96, 4, 1, 3, BF16),
    (128, 5, 1, 16, F16),
    (8, 6, 2, 7, BF16),
    (256, 2, 1, 16, F32),
    (128, 2, 1, 4, BF16),
]
"""Head size, query heads to a key head, key heads, block size, type."""


@pytest.mark.parametrize(("size", "group", "kv_heads", "block", "dtype"), SHAPES)
def test_new_tokens_see_their_context_and_nothing_else(
    size: int, group: int, kv_heads: int, block: int, dtype: torch.dtype
) -> None:
    shape: dict[str, Any] = {
        "size": size, "group": group, "kv_heads": kv_heads, "block": block, "dtype": dtype,
    }  # fmt: skip
    make_batch([(38, 39), (0, 1), (15, 16), (PART + 3, PART + 4)], **shape).check()
    make_batch([(0, 9), (5, 20), (3, 4)], **shape).check()


@pytest.mark.parametrize(
    ("window", "soft_cap"), [(None, 2.0), (1, None), (6, None), (6, 2.0), (270, None), (5000, 2.0)]
)
def test_windows_and_capped_scores(window: int | None, soft_cap: float | None) -> None:
    how = {"window": window, "soft_cap": soft_cap}
    make_batch([(PART - 1, PART), (3, 4), (2 * PART, 2 * PART + 1)], kv_heads=1).check(**how)
    make_batch([(0, 70), (30, 41), (300, 302)], kv_heads=1).check(**how)


def test_a_group_may_have_more_heads_than_a_program_has_rows() -> None:
    make_batch([(20, 23), (0, 2)], size=16, group=71, kv_heads=1).check()
    make_batch([(20, 21)], size=16, group=71, kv_heads=1).check()


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_sequences_values_do_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    ends = [PART - 1, 1, 3 * PART + 1, PART, PART + 1]
    batch = make_batch([(end - 1, end) for end in ends], kv_heads=1, dtype=dtype)
    together = batch.attend()
    for row in range(len(ends)):
        part = slice(row, row + 1)
        alone = Batch(
            batch.query[part],
            batch.cache,
            batch.tables[part],
            batch.lengths[part],
            torch.tensor([0, 1]),
        )
        assert torch.equal(alone.attend(), together[part])


def test_more_parts_than_are_joined_at_a_time() -> None:
    end = 18 * PART - 5
    batch = make_batch([(end - 1, end), (7, 8)], size=16, group=1, kv_heads=1, block=16)
    # The newest key scores highest, so that all that was joined before it counts for less.
    batch.cache[batch.tables[0, (end - 1) // 16], 0, 0, (end - 1) % 16] = batch.query[0, 0] * 2
    batch.check()
    batch.check(window=17 * PART)


def test_what_is_no_number_stays_with_the_sequence_that_has_it() -> None:
    for spans in ([(9, 10), (6, 7)], [(2, 10), (0, 7)]):
        batch = make_batch(spans)
        batch.cache[batch.tables[1, 0], 0, 0, 0] = torch.nan
        rows, got = int(batch.starts[1]), batch.attend()
        torch.testing.assert_close(
            got[:rows], batch.by_definition()[:rows], rtol=0, atol=TOLERANCES[F32]
        )
        assert got[rows:, :2].isnan().all() and not got[rows:, 2:].isnan().any()


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_large_scores_choose_one_key(dtype: torch.dtype) -> None:
    for spans in ([(40, 41)], [(30, 41)]):
        batch = make_batch(spans, dtype=dtype)
        batch.query.mul_(300.0)
        batch.check()
        batch.check(soft_cap=9.0)


def test_small_scores_are_capped_exactly() -> None:
    """Of ``x`` so small the hyperbolic tangent is ``x``."""
    batch = make_batch([(20, 21)])
    batch.query.mul_(1e-3)
    torch.testing.assert_close(batch.attend(soft_cap=50.0), batch.attend(), rtol=1e-5, atol=1e-6)


def test_a_query_may_lie_in_any_order_of_memory() -> None:
    for spans in ([(20, 21), (3, 4)], [(3, 21), (0, 4)]):
        batch = make_batch(spans)
        expected = batch.attend()
        batch.query = batch.query.transpose(1, 2).contiguous().transpose(1, 2)
        assert batch.query.stride(2) != 1
        assert torch.equal(batch.attend(), expected)


def test_a_cache_may_be_larger_than_32_bits_count() -> None:
    small = make_batch([(5, 7), (3, 4)], dtype=F16, block=16, size=64)
    block = small.cache[0].numel()
    blocks = (1 << 31) // block + 4
    # Memory that is not touched is not there.
    cache = torch.empty(blocks, *small.cache.shape[1:], dtype=F16)
    cache[-4:] = small.cache
    tables = small.tables + (blocks - 4)
    whole = Batch(small.query, cache, tables, small.lengths, small.starts)
    assert torch.equal(whole.attend(), small.attend())


def test_nothing_comes_of_nothing() -> None:
    batch = make_batch([(4, 5)])
    none = batch.query[:0], batch.cache, batch.tables[:0]
    lengths, output = batch.lengths[:0], batch.query.new_empty(0, *batch.query.shape[1:])
    attend_decode(*none, lengths, output, SCALE, longest=0)
    attend_prefill(*none, batch.starts[:1], lengths, output, SCALE, most=0)


def test_the_two_definitions_are_one() -> None:
    """The decoding one is what tokens alone in their steps see."""
    batch = make_batch([(38, 39), (0, 1)])
    got = paged_attention_decode(
        batch.query, batch.cache, batch.tables, batch.lengths, SCALE, None, None
    )
    assert torch.equal(got, batch.by_definition())


# -- the backend -----------------------------------------------------------------------------------

HEADS, KV_HEADS, SIZE = 6, 2, 32


def make_layer(
    backend: type[AttentionBackend], block: int, dtype: torch.dtype, **options: Any
) -> Attention:
    with set_model_context(static_forward_context={}, dtype=dtype, block_size=block):
        layer = Attention(HEADS, SIZE, 0.2, KV_HEADS, prefix="a", attn_backend=backend, **options)
    layer.bind_kv_cache(torch.zeros(layer.kv_cache_shape(64, block), dtype=dtype))
    return layer


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("window", "cap", "block"), [(None, None, 4), (7, 2.0, 16)])
def test_both_backends_give_the_same_over_chunks_and_decodes(
    window: int | None, cap: float | None, block: int, dtype: torch.dtype
) -> None:
    plain, by_triton = (
        make_layer(backend, block, dtype, per_layer_sliding_window=window, logits_soft_cap=cap)
        for backend in (PagedAttentionBackend, TritonAttentionBackend)
    )
    steps = [
        [(0, 30), (0, 9), (0, 3)],
        [(30, 31), (9, 10), (3, 20)],
        [(31, 32), (10, 11), (20, 21)],
    ]
    for seed, spans in enumerate(steps):
        tokens = sum(end - start for start, end in spans)
        merged = draw(tokens, (HEADS + 2 * KV_HEADS) * SIZE, dtype=dtype, seed=seed)
        parts = merged.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], dim=-1)
        results = []
        for layer in (plain, by_triton):
            context = ForwardContext(make_step(spans, block), {})
            with torch.inference_mode(), set_forward_context(context):
                results.append(layer(*parts))
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
        assert torch.equal(plain.kv_cache, by_triton.kv_cache)


def test_a_layer_that_it_cannot_compute_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'a': the attention backend 'triton' .* head size 264;"):
        Attention(1, 264, 1.0, prefix="a", attn_backend=TritonAttentionBackend)
    layer = make_layer(TritonAttentionBackend, 4, F32)
    with pytest.raises(ValueError, match=r"\(3, 2, 2, 4, 32\) is needed, not \(3, 2, 3, 4, 32\)"):
        layer.bind_kv_cache(torch.zeros(3, 2, 3, 4, SIZE))
    monkeypatch.setitem(triton.knobs.runtime.__dict__, "interpret", False)
    refused = r"'triton' does not support this start: .* needs its interpreter \(TRITON_INTERPRET=1"
    with pytest.raises(ValueError, match=refused):
        make_layer(TritonAttentionBackend, 4, F32)
