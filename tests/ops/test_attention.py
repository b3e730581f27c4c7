"""Paged attention against the definition, written out: softmax(q k^T) v over the whole context."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from hookserve.ops.attention import Attention
from hookserve.ops.context import (
    AttentionMetadata,
    ForwardContext,
    get_forward_context,
    set_forward_context,
    set_model_context,
)
from hookserve.ops.decode_groups import split_by_length
from hookserve.ops.paged_attention import PagedAttentionBackend

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 8, 4


def make_layer(
    dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[Attention, dict[str, Any]]:
    layers: dict[str, Any] = {}
    with set_model_context(static_forward_context=layers, dtype=dtype, block_size=BLOCK):
        layer = Attention(HEADS, SIZE, 0.3, KV_HEADS, prefix="x.attn", **options)
    layer.bind_kv_cache(torch.zeros(layer.kv_cache_shape(200, BLOCK), dtype=dtype))
    return layer, layers


def by_definition(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int | None = None,
    cap: float | None = None,
) -> torch.Tensor:
    """The last ``len(q)`` positions' queries over all keys, head by head, in float64."""
    out = torch.zeros(len(q), HEADS, SIZE, dtype=torch.float64)
    for row, head in itertools.product(range(len(q)), range(HEADS)):
        end = len(k) - len(q) + row + 1
        seen = slice(max(0, end - window) if window else 0, end)
        keys = k.view(len(k), KV_HEADS, SIZE)[seen, head * KV_HEADS // HEADS].double()
        values = v.view(len(v), KV_HEADS, SIZE)[seen, head * KV_HEADS // HEADS]
        scores = keys @ q.view(len(q), HEADS, SIZE)[row, head].double() * 0.3
        if cap:
            scores = torch.tanh(scores / cap) * cap
        out[row, head] = torch.softmax(scores, 0) @ values.double()
    return out.view(len(q), -1)


class Sequence:
    """Random queries, keys and values of one sequence, and its blocks."""

    def __init__(self, length: int, blocks: list[int], dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.q = torch.randn(length, HEADS * SIZE, generator=generator).to(dtype)
        self.k = torch.randn(length, KV_HEADS * SIZE, generator=generator).to(dtype)
        self.v = torch.randn(length, KV_HEADS * SIZE, generator=generator).to(dtype)
        self.blocks = blocks


def run(layer: Attention, layers: Any, batch: list[tuple[Sequence, int, int]]) -> torch.Tensor:
    """One step over positions ``[start, end)`` of each sequence."""
    width = max(len(sequence.blocks) for sequence, _, _ in batch)
    tables = torch.zeros(len(batch), width, dtype=torch.int64)
    slots, starts = [], [0]
    for row, (sequence, start, end) in enumerate(batch):
        tables[row, : len(sequence.blocks)] = torch.tensor(sequence.blocks)
        slots += [sequence.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end)]
        starts.append(len(slots))
    metadata = AttentionMetadata(
        num_reqs=len(batch),
        num_tokens=len(slots),
        num_decode_reqs=sum(end - start == 1 and start > 0 for _, start, end in batch),
        query_start_loc=starts,
        seq_lens=[end for _, _, end in batch],
        block_tables=tables,
        slot_mapping=torch.tensor(slots),
        block_size=BLOCK,
    )
    q, k, v = (
        torch.cat([getattr(sequence, name)[start:end] for sequence, start, end in batch])
        for name in "qkv"
    )
    with torch.inference_mode(), set_forward_context(ForwardContext(metadata, layers)):
        return layer(q, k, v)


KINDS = {
    "plain": (None, None),
    "window of one block": (4, None),
    "window across blocks": (6, None),
    "window of one token": (1, None),
    "window longer than all": (300, None),
    "capped": (None, 0.7),
    "capped in a window": (6, 0.7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_decodes_equal_the_definition(kind: str, dtype: torch.dtype) -> None:
    window, cap = KINDS[kind]
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    layer, layers = make_layer(dtype, per_layer_sliding_window=window, logits_soft_cap=cap)
    one = Sequence(23, [9, 3, 4, 30, 31, 2], dtype, 1)
    two = Sequence(11, [5, 20, 6], dtype, 2)
    steps = [
        [(one, 0, 9)],  # fresh
        [(one, 9, 10), (two, 0, 6)],  # a decode beside a fresh one
        [(one, 10, 17), (two, 6, 7)],  # a chunk over a prefix, and a chunk of one token
        [(two, 7, 8), (one, 17, 22)],
        [(two, 8, 9), (one, 22, 23)],  # decodes of different lengths
        [(two, 9, 11)],
    ]
    for batch in steps:
        if batch[-1] == (two, 6, 7):  # not counted as a decode where it does not come first
            batch = [batch[1], batch[0]]
        got = run(layer, layers, batch).double()
        want = torch.cat(
            [by_definition(s.q[a:b], s.k[:b], s.v[:b], window, cap) for s, a, b in batch]
        )
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "window across blocks", "capped"])
def test_many_decodes_of_very_different_lengths_equal_the_definition(
    kind: str, dtype: torch.dtype
) -> None:
    window, cap = KINDS[kind]
    layer, layers = make_layer(dtype, per_layer_sliding_window=window, logits_soft_cap=cap)
    lengths = [2, 200, 3, 199, 5, 8, 9, 4, 150]
    start = 1
    batch = []
    for seed, length in enumerate(lengths):
        blocks = list(range(start, start + -(-length // BLOCK)))
        start += len(blocks)
        sequence = Sequence(length, blocks, dtype, seed)
        run(layer, layers, [(sequence, 0, length - 1)])
        batch.append((sequence, length - 1, length))
    assert len(split_by_length([-(-length // BLOCK) for length in lengths], None, 80)) > 1
    got = run(layer, layers, batch).double()
    want = torch.cat([by_definition(s.q[-1:], s.k, s.v, window, cap) for s, _, _ in batch])
    atol = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


def use_products(layer: Attention) -> None:
    """Whatever this machine would choose: the values are right everywhere, only slower on some."""
    layer.impl.by_matmul = True


@pytest.mark.parametrize("window", [None, 295])
def test_the_way_by_products_equals_the_fused_one(window: int | None) -> None:
    fast, layers = make_layer(torch.bfloat16, per_layer_sliding_window=window)
    plain, _ = make_layer(torch.bfloat16, per_layer_sliding_window=window)
    use_products(fast)
    plain.impl.by_matmul = False
    one = Sequence(300, list(range(1, 76)), torch.bfloat16, 1)  # more rows than a chunk has
    two = Sequence(290, list(range(80, 153)), torch.bfloat16, 2)
    for batch in (
        [(one, 0, 290), (two, 0, 5)],
        [(one, 290, 299), (two, 5, 289)],
        [(one, 299, 300), (two, 289, 290)],
    ):
        got, want = (run(layer, layers, batch).float() for layer in (fast, plain))
        torch.testing.assert_close(got, want, rtol=0, atol=2e-2)


def test_large_scores_are_not_rounded_to_steps() -> None:
    layer, layers = make_layer(torch.bfloat16)
    use_products(layer)
    one, two = (
        Sequence(40, list(range(start, start + 10)), torch.bfloat16, start) for start in (1, 20)
    )
    for sequence in (one, two):  # scores around 300, where bfloat16 has steps of 2
        sequence.q[:, ::SIZE] = 32.0
        sequence.k[:, ::SIZE] = 32.0
    batches = [[(one, 0, 39), (two, 0, 39)], [(one, 39, 40), (two, 39, 40)]]
    for batch in batches:
        got = run(layer, layers, batch).double()
        want = torch.cat([by_definition(s.q[a:b], s.k[:b], s.v[:b]) for s, a, b in batch])
        torch.testing.assert_close(got, want, rtol=0, atol=3e-2)


def test_a_window_gathers_no_more_than_it_needs() -> None:
    layer, layers = make_layer(per_layer_sliding_window=6)
    one = Sequence(200, list(range(1, 51)), torch.float32, 1)
    run(layer, layers, [(one, 0, 190)])
    metadata = AttentionMetadata(
        1, 1, 1, [0, 1], [191], torch.tensor([one.blocks]), torch.tensor([0]), BLOCK
    )
    with torch.inference_mode(), set_forward_context(ForwardContext(metadata, layers)):
        layer(one.q[190:191], one.k[190:191], one.v[190:191])
    pages = next(value for name, value in metadata.cache.items() if name[0] == "gathered")[0]
    assert len(pages) == 2 * KV_HEADS  # two blocks of 48


def test_layers_with_and_without_a_window_share_a_step() -> None:
    full, layers = make_layer()
    limited, _ = make_layer(per_layer_sliding_window=5)
    capped, _ = make_layer(logits_soft_cap=0.5)
    one = Sequence(23, [9, 3, 4, 30, 31, 2], torch.float32, 1)
    for start, end in ((0, 9), (9, 21), (21, 22)):
        width = torch.tensor([one.blocks])
        slots = [one.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end)]
        n = end - start
        metadata = AttentionMetadata(
            1, n, int(n == 1), [0, n], [end], width, torch.tensor(slots), BLOCK
        )
        with torch.inference_mode(), set_forward_context(ForwardContext(metadata, layers)):
            for layer, window, cap in ((full, None, None), (limited, 5, None), (capped, None, 0.5)):
                got = layer(one.q[start:end], one.k[start:end], one.v[start:end])
                want = by_definition(one.q[start:end], one.k[:end], one.v[:end], window, cap)
                torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    class CacheConfig:
        sliding_window = 8

    for longest, expected in ((8, None), (9, 8)):
        with set_model_context(
            static_forward_context={}, dtype=torch.float32, block_size=4, max_model_len=longest
        ):
            assert Attention(4, 8, 1.0, per_layer_sliding_window=8, prefix="a").window == expected
            assert Attention(4, 8, 1.0, cache_config=CacheConfig(), prefix="b").window == expected


def test_rows_may_be_strided_as_in_a_merged_projection() -> None:
    layer, layers = make_layer()
    sequence = Sequence(7, [1, 2], torch.float32, 5)
    merged = torch.cat([sequence.q, sequence.k, sequence.v], -1)
    sequence.q, sequence.k, sequence.v = merged.split(
        [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1
    )
    want = by_definition(sequence.q, sequence.k, sequence.v)
    metadata = AttentionMetadata(
        1, 7, 0, [0, 7], [7], torch.tensor([[1, 2]]), torch.arange(4, 11), BLOCK
    )
    with torch.inference_mode(), set_forward_context(ForwardContext(metadata, layers)):
        got = layer(sequence.q, sequence.k, sequence.v)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)


def test_what_other_sequences_left_in_a_block_is_not_seen() -> None:
    layer, layers = make_layer()
    layer.kv_cache.fill_(1000.0)
    one, two = (Sequence(6, [seed * 2, seed * 2 + 1], torch.float32, seed) for seed in (1, 2))
    run(layer, layers, [(one, 0, 5), (two, 0, 2)])
    got = run(layer, layers, [(one, 5, 6), (two, 2, 3)]).double()
    want = torch.cat(
        [by_definition(one.q[5:], one.k, one.v), by_definition(two.q[2:3], two.k[:3], two.v[:3])]
    )
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_layers_of_one_step_share_indices_but_not_keys() -> None:
    first, layers = make_layer()
    second, _ = make_layer()
    one, two = (Sequence(9, [1, 2, 3], torch.float32, seed) for seed in (1, 2))
    for layer, sequence in ((first, one), (second, two)):
        run(layer, layers, [(sequence, 0, 8)])
    metadata = AttentionMetadata(
        1, 1, 1, [0, 1], [9], torch.tensor([[1, 2, 3]]), torch.tensor([3 * BLOCK]), BLOCK
    )
    with torch.inference_mode(), set_forward_context(ForwardContext(metadata, layers)):
        got = [
            layer(s.q[8:], s.k[8:], s.v[8:]).double() for layer, s in ((first, one), (second, two))
        ]
    for result, sequence in zip(got, (one, two), strict=True):
        want = by_definition(sequence.q[8:], sequence.k, sequence.v)
        torch.testing.assert_close(result, want, rtol=0, atol=1e-5)


def test_groups_keep_every_row_and_bound_padding() -> None:
    groups = split_by_length([1, 100, 2, 99, 100, 1], None, 80)
    assert sorted(itertools.chain(*groups)) == list(range(6))
    assert {frozenset(group) for group in groups} == {frozenset({1, 3, 4}), frozenset({0, 2, 5})}


def test_groups_gather_no_more_than_the_limit() -> None:
    groups = split_by_length([10] * 7, 30, 80)
    assert [len(group) for group in groups] == [3, 3, 1]
    assert split_by_length([50], 30, 80) == [[0]]  # one sequence cannot be split


def test_the_spec_states_the_bytes_of_a_block() -> None:
    layer, _ = make_layer(torch.bfloat16)

    class Config:
        class cache_config:
            block_size = 32

    spec = layer.get_kv_cache_spec(Config)
    assert (spec.num_kv_heads, spec.head_size, spec.dtype) == (KV_HEADS, SIZE, torch.bfloat16)
    assert spec.page_size_bytes == 2 * 32 * KV_HEADS * SIZE * 2
    shape = layer.kv_cache_shape(5, 32)
    assert math.prod(shape) * 2 == 5 * spec.page_size_bytes


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'x'.*alibi_slopes=\[0\.5\] is not supported"):
        Attention(4, 8, 1.0, alibi_slopes=[0.5], prefix="x")
    with pytest.raises(ValueError, match=r"'x': logits_soft_cap is 0\.0; expected more than 0"):
        Attention(4, 8, 1.0, logits_soft_cap=0.0, prefix="x")
    with pytest.raises(ValueError, match=r"'x': per_layer_sliding_window is -1"):
        Attention(4, 8, 1.0, per_layer_sliding_window=-1, prefix="x")
    with pytest.raises(ValueError, match=r"attn_type='encoder'"):
        Attention(4, 8, 1.0, attn_type="encoder")
    with pytest.raises(ValueError, match=r"5 heads are not a multiple of 2"):
        Attention(5, 8, 1.0, 2)


def test_two_layers_of_one_prefix_are_refused() -> None:
    with set_model_context(static_forward_context={}, dtype=torch.float32, block_size=4):
        Attention(4, 8, 1.0, prefix="same")
        with pytest.raises(ValueError, match=r"'same'"):
            Attention(4, 8, 1.0, prefix="same")


def test_a_cache_of_another_shape_is_refused() -> None:
    layer, _ = make_layer()
    with pytest.raises(ValueError, match=r"x\.attn: .*\(3, 2, 2, 4, 8\).*\(3, 2, 3, 4, 8\)"):
        layer.bind_kv_cache(torch.zeros(3, 2, 3, BLOCK, SIZE))


def test_forward_contexts_do_not_nest_and_always_end() -> None:
    context = ForwardContext(None, {})
    with pytest.raises(ZeroDivisionError), set_forward_context(context):
        assert get_forward_context() is context
        raise ZeroDivisionError
    with set_forward_context(context):
        with pytest.raises(RuntimeError, match="do not nest"), set_forward_context(context):
            pass
        assert get_forward_context() is context
    with pytest.raises(RuntimeError, match="no forward context"):
        get_forward_context()


class BlocksLast(PagedAttentionBackend):
    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        return (2, num_blocks, block_size, num_kv_heads, head_size)


def test_a_backend_whose_cache_does_not_begin_with_its_blocks_is_refused() -> None:
    layer = Attention(4, 8, 1.0, prefix="attn", attn_backend=BlocksLast)
    assert layer.get_attn_backend() is BlocksLast
    with pytest.raises(ValueError, match=r"'attn': .*expected its 5 blocks in the first dimension"):
        layer.kv_cache_shape(5, 16)
