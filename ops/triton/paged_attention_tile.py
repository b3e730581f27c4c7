"""What the attention kernels share: one tile of positions, folded into the softmax of some rows.

A tile's keys and values are read through a sequence's block table, at any block size. Memory that
no row of a program sees is not read. What one of them sees is to be finite: for the others its
values count 0 times. Which rows and which tiles a program has is the business of
``paged_attention_decode`` and ``paged_attention_prefill``.

The softmax is kept as it is summed up (Milakov and Gimelshein, 2018): of each row the highest score
so far, the sum of the weights relative to it, and the weighted sum of the values, all in float32.
Scores are in powers of two, for which a GPU has an instruction.

The kernels are compiled once for each kind of layer. What changes from step to step (the width of
tables, and where in memory they begin) is not specialized on: it would have requests wait for the
compiler whenever such a number is a multiple of 16 for the first time.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from .launch import block_of

_LOG2_E = math.log2(math.e)
_TILE_BYTES = 16 << 10
# Keys of a tile. With its values, and the next tile's that are fetched meanwhile, it is four times
# that of a GPU's fast memory, of which those that compute in bfloat16 have 99 KiB or more.
_MAX_TILE, _MIN_TILE = 64, 16


def padded(count: int) -> int:
    """The power of two that holds ``count``, and that the matrix instructions take."""
    return max(16, block_of(count))


def tile_size(head_size: int, dtype: torch.dtype) -> int:
    """Positions of a tile."""
    fitting = _TILE_BYTES // (padded(head_size) * dtype.itemsize)
    return min(_MAX_TILE, max(_MIN_TILE, fitting))


def score_factors(scale: float, soft_cap: float | None) -> tuple[float, float]:
    """What ``fold`` multiplies scores by before they are capped, and after."""
    return (scale * _LOG2_E, 1.0) if soft_cap is None else (scale / soft_cap, soft_cap * _LOG2_E)


def is_wide(dtype: torch.dtype) -> bool:
    """Whether factors are to be made float32 before they are multiplied: Triton's interpreter takes
    the bits of bfloat16 for an integer's. The products are the same, as bfloat16 is exact in
    float32."""
    return bool(triton.knobs.runtime.interpret) and dtype is torch.bfloat16


@triton.jit
def multiply(a: tl.tensor, b: tl.tensor, WIDE: tl.constexpr) -> tl.tensor:
    """``a @ b`` in float32, whose factors are not rounded to anything shorter."""
    if WIDE:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def hyperbolic_tangent(x: tl.tensor) -> tl.tensor:
    """By powers that cannot overflow."""
    shrunk = tl.exp2(-2.8853900817779268 * tl.abs(x))  # exp(-2 |x|)
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -size, size)


@triton.jit
def fold(
    query: tl.tensor,
    cache: tl.tensor,
    values_at: tl.tensor,
    table: tl.tensor,
    positions: tl.tensor,
    is_read: tl.tensor,
    is_seen: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    summed: tl.tensor,
    stride_block: tl.tensor,
    stride_position: tl.tensor,
    before_cap: tl.tensor,
    after_cap: tl.tensor,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    IS_CAPPED: tl.constexpr,
    WIDE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add a tile to the softmax of the rows of ``query: [ROWS, HEAD_PAD]``.

    Args:
        cache: a layer's, from one key head on; the values lie ``values_at`` behind the keys.
        table: the blocks of the sequence.
        positions: ``[TILE]``.
        is_read: ``[TILE]``: some row sees them. The memory of others is not touched.
        is_seen: ``[ROWS, TILE]``.
        highest: ``[ROWS]``, as ``total``.
        summed: ``[ROWS, HEAD_PAD]``.

    Returns:
        The last three, with the tile.
    """
    dims = tl.arange(0, HEAD_PAD)
    blocks = tl.load(table + positions // BLOCK, mask=is_read, other=0).to(tl.int64)
    starts = blocks * stride_block + (positions % BLOCK) * stride_position
    at = starts[:, None] + dims[None, :]
    is_wanted = is_read[:, None] & (dims < HEAD)[None, :]
    keys = tl.load(cache + at, mask=is_wanted, other=0.0)
    scores = multiply(query, tl.trans(keys), WIDE) * before_cap
    if IS_CAPPED:
        scores = hyperbolic_tangent(scores) * after_cap
    scores = tl.where(is_seen, scores, float("-inf"))
    now = tl.maximum(highest, tl.max(scores, 1))
    # A row that has seen nothing yet is at -inf, from which -inf cannot be subtracted.
    base = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(highest - base)
    values = tl.load(cache + values_at + at, mask=is_wanted, other=0.0)
    summed = summed * kept[:, None] + multiply(weights.to(values.dtype), values, WIDE)
    return now, total * kept + tl.sum(weights, 1), summed
