"""Attention of chunks of prompts over a paged cache that has the chunks' own keys and values, and
those of what came before.

The rows of a key head are its query heads of each token: with three of them the first token's are
rows 0 to 2. A program has a number of rows, whatever the group's size, and goes over the positions
that any of them sees.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .paged_attention_tile import fold, is_wide, padded, score_factors, tile_size

_ROW_BYTES = 16 << 10
# Queries of a program.
_MAX_ROWS, _MIN_ROWS = 64, 16


def attend_prefill(
    query: torch.Tensor,
    cache: torch.Tensor,
    tables: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    output: torch.Tensor,
    scale: float,
    *,
    most: int,
    window: int | None = None,
    soft_cap: float | None = None,
) -> None:
    """Fill the rows of ``output`` that are the sequences' with ``softmax(scale * q k^T) v``, each
    over what comes no later than itself. All tensors are on one device.

    Args:
        query: ``[tokens, num_heads, head_size]``, in any order of memory.
        cache: ``[num_blocks, 2, kv_heads, block_size, head_size]``, contiguous, with the new tokens
            in it.
        tables: ``[n, max_blocks]``, rows in one piece; behind a sequence's end any numbers.
        starts: ``[n + 1]``: sequence ``i`` has the rows ``[starts[i], starts[i + 1])``,
            which are its last tokens.
        lengths: ``[n]``: positions, the new tokens' included.
        output: ``[tokens, num_heads, head_size]``; the numbers of a head lie together.
        most: not less than any sequence's number of rows.
        window: a token sees so many tokens at most, itself the last of them.
        soft_cap: scores are kept within it, as ``cap * tanh(score / cap)``.
    """
    num_heads, head_size = query.shape[1:]
    kv_heads, block_size = cache.shape[2:4]
    group = num_heads // kv_heads
    rows = row_count(head_size, query.dtype)
    num_tiles = triton.cdiv(most * group, rows)
    if not num_tiles or not len(lengths):
        return
    if query.stride(2) != 1:
        query = query.contiguous()
    _attend_rows[(num_tiles, kv_heads, len(lengths))](
        query,
        cache,
        tables,
        starts,
        lengths,
        output,
        *score_factors(scale, soft_cap),
        window or 0,
        *query.stride()[:2],
        *cache.stride()[:4],
        tables.stride(0),
        *output.stride()[:2],
        HEAD=head_size,
        HEAD_PAD=padded(head_size),
        HAS_WINDOW=window is not None,
        GROUP=group,
        ROWS=rows,
        BLOCK=block_size,
        TILE=tile_size(head_size, query.dtype),
        IS_CAPPED=soft_cap is not None,
        WIDE=is_wide(query.dtype),
        # Sums of products in float32 take up so many registers.
        num_warps=8 if query.dtype is torch.float32 else 4,
        num_stages=2,
    )


def row_count(head_size: int, dtype: torch.dtype) -> int:
    """Rows of a program."""
    fitting = _ROW_BYTES // (padded(head_size) * dtype.itemsize)
    return min(_MAX_ROWS, max(_MIN_ROWS, fitting))


@triton.jit(
    do_not_specialize=["stride_table"],
    do_not_specialize_on_alignment=["tables", "starts", "lengths"],
)
def _attend_rows(
    query: tl.tensor,
    cache: tl.tensor,
    tables: tl.tensor,
    starts: tl.tensor,
    lengths: tl.tensor,
    output: tl.tensor,
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
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    IS_CAPPED: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    start = tl.load(starts + sequence).to(tl.int32)
    count = tl.load(starts + sequence + 1).to(tl.int32) - start
    # The last rows see most; they come first, so that none is left over at the end.
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    if first_row >= count * GROUP:
        return
    # The position of the chunk's first token.
    cached = tl.load(lengths + sequence).to(tl.int32) - count

    dims = tl.arange(0, HEAD_PAD)
    rows = first_row + tl.arange(0, ROWS)
    tokens = (start + rows // GROUP).to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
    is_number = (rows < count * GROUP)[:, None] & (dims < HEAD)[None, :]
    at = (tokens * stride_query + heads * stride_query_head)[:, None] + dims[None, :]
    queries = tl.load(query + at, mask=is_number, other=0.0)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    # Behind the last position that each row sees, and behind those that any does.
    ends = cached + rows // GROUP + 1
    end = cached + tl.minimum((first_row + ROWS - 1) // GROUP + 1, count)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(cached + first_row // GROUP + 1 - window, 0)
    for tile in range(begin // TILE * TILE, end, TILE):
        positions = tile + tl.arange(0, TILE)
        is_seen = positions[None, :] < ends[:, None]
        if HAS_WINDOW:
            is_seen = is_seen & (positions[None, :] >= ends[:, None] - window)
        highest, total, sums = fold(
            queries,
            cache + kv_head * stride_head,
            stride_value,
            tables + sequence * stride_table,
            positions,
            (positions >= begin) & (positions < end),
            is_seen,
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
    at = (tokens * stride_output + heads * stride_output_head)[:, None] + dims[None, :]
    # Rows behind the chunk's end may have seen nothing; they are not stored.
    total = tl.where(total == 0, 1.0, total)
    tl.store(output + at, (sums / total[:, None]).to(output.dtype.element_ty), mask=is_number)
