"""Attention of sequences that have one new token each, straight from the paged cache.

A program has the query heads of one key head, so that each key is read once, and one part of the
context. Where parts begin depends on nothing else in the batch, and so no sequence's values depend
on its neighbours. A second kernel joins the parts of longer contexts.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .paged_attention_tile import fold, is_wide, padded, score_factors, tile_size

PART = 256
"""Positions of a part. Fewer, and there is more to join: with four query heads to a key head, in
bfloat16, it is a thirtieth of what is read of the cache; more, and a sequence that is alone leaves
most of a large GPU idle."""
_JOINED = 16
# Parts that are read at a time where they are joined.


def attend_decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    output: torch.Tensor,
    scale: float,
    *,
    longest: int,
    window: int | None = None,
    soft_cap: float | None = None,
) -> None:
    """Fill ``output`` with ``softmax(scale * q k^T) v`` over the context of each sequence. All
    tensors are on one device.

    Args:
        query: ``[n, num_heads, head_size]``, in any order of memory.
        cache: ``[num_blocks, 2, kv_heads, block_size, head_size]``, contiguous, with the new tokens
            in it.
        tables: ``[n, max_blocks]``, rows in one piece; behind a sequence's end any numbers.
        lengths: ``[n]``: positions, the new token's included.
        output: ``[n, num_heads, head_size]``; the numbers of a head lie together.
        longest: not less than any of the lengths.
        window: a token sees so many tokens at most, itself the last of them.
        soft_cap: scores are kept within it, as ``cap * tanh(score / cap)``.
    """
    count, num_heads, head_size = query.shape
    if not count:
        return
    kv_heads, block_size = cache.shape[2:4]
    num_parts = triton.cdiv(longest, PART)
    if window is not None:
        # A window may begin and end within a part.
        num_parts = min(num_parts, triton.cdiv(window - 1, PART) + 1)
    is_whole = num_parts == 1
    shape = (0, 0, 0) if is_whole else (count, num_heads, num_parts)
    marks = query.new_empty(*shape, 2, dtype=torch.float32)
    summed = query.new_empty(*shape, head_size, dtype=torch.float32)
    before_cap, after_cap = score_factors(scale, soft_cap)
    kind: dict[str, Any] = {
        "HEAD": head_size,
        "HEAD_PAD": padded(head_size),
        "HAS_WINDOW": window is not None,
        "PART": PART,
    }
    if query.stride(2) != 1:
        query = query.contiguous()
    _attend_part[(count, kv_heads, num_parts)](
        query,
        cache,
        tables,
        lengths,
        output,
        marks,
        summed,
        before_cap,
        after_cap,
        window or 0,
        *query.stride()[:2],
        *cache.stride()[:4],
        tables.stride(0),
        *output.stride()[:2],
        GROUP=num_heads // kv_heads,
        GROUP_PAD=padded(num_heads // kv_heads),
        BLOCK=block_size,
        TILE=tile_size(head_size, query.dtype),
        IS_WHOLE=is_whole,
        IS_CAPPED=soft_cap is not None,
        WIDE=is_wide(query.dtype),
        **kind,
        num_stages=2,
    )
    if not is_whole:
        _join_parts[(count, num_heads)](
            marks,
            summed,
            lengths,
            output,
            num_parts,
            window or 0,
            *output.stride()[:2],
            JOINED=_JOINED,
            **kind,
        )


@triton.jit(
    do_not_specialize=["stride_table"], do_not_specialize_on_alignment=["tables", "lengths"]
)
def _attend_part(
    query: tl.tensor,
    cache: tl.tensor,
    tables: tl.tensor,
    lengths: tl.tensor,
    output: tl.tensor,
    marks: tl.tensor,
    summed: tl.tensor,
    before_cap: tl.tensor,
    after_cap: tl.tensor,
    window: tl.tensor,
    stride_query: tl.tensor,
    stride_query_head: tl.tensor,
    stride_block: tl.tensor,
    stride_value: tl.tensor,
    stride_head: tl.tensor,
    stride_position: tl.tensor,
    stride_table: tl.tensor,
    stride_output: tl.tensor,
    stride_output_head: tl.tensor,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    IS_CAPPED: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """One part of one sequence for one key head: to ``output`` if it is all that there is, else
    highest score and sum of the weights to ``marks: [n, num_heads, num_parts, 2]``, and the sum of
    the values to ``summed: [n, num_heads, num_parts, HEAD]``."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    end = tl.load(lengths + row).to(tl.int32)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(end - window, 0)
    begin = (first // PART + tl.program_id(2)) * PART
    if begin >= end:
        return
    end = tl.minimum(end, begin + PART)
    begin = tl.maximum(begin, first)

    dims = tl.arange(0, HEAD_PAD)
    members = tl.arange(0, GROUP_PAD)
    heads = kv_head * GROUP + members
    is_number = (members < GROUP)[:, None] & (dims < HEAD)[None, :]
    at = query + row * stride_query + heads[:, None] * stride_query_head + dims[None, :]
    queries = tl.load(at, mask=is_number, other=0.0)
    highest = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    sums = tl.zeros([GROUP_PAD, HEAD_PAD], tl.float32)
    # Tiles too begin where they would alone.
    for start in range(begin // TILE * TILE, end, TILE):
        positions = start + tl.arange(0, TILE)
        is_seen = (positions >= begin) & (positions < end)
        highest, total, sums = fold(
            queries,
            cache + kv_head * stride_head,
            stride_value,
            tables + row * stride_table,
            positions,
            is_seen,
            is_seen[None, :],
            highest,
            total,
            sums,
            stride_block,
            stride_position,
            before_cap,
            after_cap,
            BLOCK,
            HEAD,
            HEAD_PAD,
            IS_CAPPED,
            WIDE,
        )
    if IS_WHOLE:
        at = output + row * stride_output + heads[:, None] * stride_output_head + dims[None, :]
        tl.store(at, (sums / total[:, None]).to(output.dtype.element_ty), mask=is_number)
    else:
        num_heads = tl.num_programs(1) * GROUP
        part = (row * num_heads + heads) * tl.num_programs(2) + tl.program_id(2)
        tl.store(marks + part * 2, highest, mask=members < GROUP)
        tl.store(marks + part * 2 + 1, total, mask=members < GROUP)
        tl.store(summed + part[:, None] * HEAD + dims[None, :], sums, mask=is_number)


@triton.jit(do_not_specialize=["num_parts"], do_not_specialize_on_alignment=["lengths"])
def _join_parts(
    marks: tl.tensor,
    summed: tl.tensor,
    lengths: tl.tensor,
    output: tl.tensor,
    num_parts: tl.tensor,
    window: tl.tensor,
    stride_output: tl.tensor,
    stride_output_head: tl.tensor,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PART: tl.constexpr,
    JOINED: tl.constexpr,
) -> None:
    """One head of one sequence, from what ``_attend_part`` left of its parts."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    end = tl.load(lengths + row).to(tl.int32)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(end - window, 0)
    count = tl.cdiv(end, PART) - first // PART
    dims = tl.arange(0, HEAD_PAD)
    base = (row * tl.num_programs(1) + head) * num_parts
    highest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([HEAD_PAD], tl.float32)
    for start in range(0, count, JOINED):
        parts = start + tl.arange(0, JOINED)
        is_part = parts < count
        at = marks + (base + parts) * 2
        high = tl.load(at, mask=is_part, other=float("-inf"))
        now = tl.maximum(highest, tl.max(high, 0))  # finite: each part has a position that is seen
        weights = tl.exp2(high - now)
        kept = tl.exp2(highest - now)
        total = total * kept + tl.sum(weights * tl.load(at + 1, mask=is_part, other=0.0), 0)
        at = summed + (base + parts)[:, None] * HEAD + dims[None, :]
        values = tl.load(at, mask=is_part[:, None] & (dims < HEAD)[None, :], other=0.0)
        sums = sums * kept + tl.sum(values * weights[:, None], 0)
        highest = now
    at = output + row * stride_output + head * stride_output_head + dims
    tl.store(at, (sums / total).to(output.dtype.element_ty), mask=dims < HEAD)
