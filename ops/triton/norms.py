"""Root-mean-square norms, alone or joined with the residual addition: one pass over each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import as_rows, block_of, warps_of

MAX_WIDTH = 1 << 16
"""A row is one program's."""


@triton.jit
def _rms_norm(
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    total_ptr: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    width: tl.tensor,
    epsilon: tl.tensor,
    HAS_RESIDUAL: tl.constexpr,
    IS_GEMMA: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)  # times a stride it may be more than 32 bits hold
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    dtype = out_ptr.dtype.element_ty
    wide = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        there = tl.load(residual_ptr + row * residual_stride + columns, mask=inside, other=0.0)
        total = (wide + there.to(tl.float32)).to(dtype)
        tl.store(total_ptr + row * width + columns, total, mask=inside)
        wide = total.to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    normalised = wide / tl.sqrt(tl.sum(wide * wide) / width + epsilon)
    if IS_GEMMA:
        normalised = normalised * (1.0 + weight)
    else:
        normalised = normalised.to(dtype).to(tl.float32) * weight
    tl.store(out_ptr + row * width + columns, normalised.to(dtype), mask=inside)


def rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    *,
    is_gemma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The twin of ``RMSNorm.forward_native``, or of ``GemmaRMSNorm``'s, rounding where they do:
    ``(normalised, x + residual)``, the second ``None`` without a residual.

    Args:
        x: ``[..., width]`` of at most ``MAX_WIDTH``, as ``residual``; in any order of memory.
        weight: ``[width]``, contiguous.
    """
    width = x.shape[-1]
    rows = as_rows(x)
    out = x.new_empty(x.shape)
    total = None if residual is None else x.new_empty(x.shape)
    there = rows if residual is None else as_rows(residual)
    if x.numel():
        block = block_of(width)
        _rms_norm[(rows.shape[0],)](
            rows,
            there,
            weight,
            out,
            out if total is None else total,
            rows.stride(0),
            there.stride(0),
            width,
            epsilon,
            HAS_RESIDUAL=residual is not None,
            IS_GEMMA=is_gemma,
            BLOCK=block,
            num_warps=warps_of(block),
        )
    return out, total
