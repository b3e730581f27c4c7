"""Rotary embeddings: the pairs of all heads of a token at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import block_of, warps_of

_MAX_TILE = 4096


@triton.jit
def _rotate(
    x_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    heads: tl.tensor,
    head_size: tl.tensor,
    half: tl.tensor,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, HALF)[None, :]
    dtype = out_ptr.dtype.element_ty
    x_row, out_row = x_ptr + token * x_stride, out_ptr + token * heads * head_size
    is_pair = pair < half
    cos_row, sin_row = cos_ptr + token * cos_stride + pair, sin_ptr + token * sin_stride + pair
    cos_1 = tl.load(cos_row, mask=is_pair, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos_row + half, mask=is_pair, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin_row, mask=is_pair, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin_row + half, mask=is_pair, other=0.0).to(tl.float32)
    inside = (head < heads) & is_pair
    at = head * head_size + pair
    one = tl.load(x_row + at, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(x_row + at + half, mask=inside, other=0.0).to(tl.float32)
    turned_1 = (one * cos_1).to(dtype).to(tl.float32) + other * sin_1
    turned_2 = (other * cos_2).to(dtype).to(tl.float32) + one * sin_2
    tl.store(out_row + at, turned_1.to(dtype), mask=inside)
    tl.store(out_row + at + half, turned_2.to(dtype), mask=inside)
    if REST > 0:
        stays = 2 * half + tl.arange(0, REST)[None, :]
        inside = (head < heads) & (stays < head_size)
        at = head * head_size + stays
        tl.store(out_row + at, tl.load(x_row + at, mask=inside, other=0.0), mask=inside)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int) -> torch.Tensor:
    """The twin of ``RotaryEmbedding._rotate``, and of ``PartialRotaryEmbedding``'s, rounding where
    they do.

    Args:
        x: ``[tokens, heads * head_size]``, each row in one piece; rows may be apart.
        cos: ``[tokens, 1, turning]``, as ``sin``, which carries the signs; the first ``turning``
            elements of each head turn, and the last dimension lies in one piece.

    Returns:
        The same shape, contiguous.
    """
    tokens, width = x.shape
    out = x.new_empty(x.shape)
    if out.numel():
        heads, half = width // head_size, cos.shape[-1] // 2
        rest = head_size - 2 * half
        widest = block_of(max(half, rest))
        tile = min(block_of(heads), max(1, _MAX_TILE // widest))
        _rotate[(tokens, triton.cdiv(heads, tile))](
            x,
            cos,
            sin,
            out,
            x.stride(0),
            cos.stride(0),
            sin.stride(0),
            heads,
            head_size,
            half,
            HEADS=tile,
            HALF=block_of(half),
            REST=block_of(rest) if rest else 0,
            num_warps=warps_of(tile * widest),
        )
    return out
