"""Gated activations: one pass over both halves of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import as_rows, block_of, warps_of

_MAX_BLOCK = 1024
_KINDS = {"silu": 0, "none": 1, "tanh": 2}


@triton.jit
def _gate_and_mul(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: tl.tensor,
    width: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    dtype = out_ptr.dtype.element_ty
    start = x_ptr + row * x_stride + columns
    gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + width, mask=inside, other=0.0).to(tl.float32)
    if KIND == 0:
        gate = gate / (1.0 + tl.exp(-gate))
    elif KIND == 1:
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), of which nothing cancels.
        turned = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        gate = gate / (1.0 + tl.exp(-turned))
    gate = gate.to(dtype).to(tl.float32)
    tl.store(out_ptr + row * width + columns, (gate * up).to(dtype), mask=inside)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """The twin of ``SiluAndMul.forward_native``: ``x: [..., 2 * d]`` to ``[..., d]``."""
    return _gated(x, "silu")


def gelu_and_mul(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The twin of ``GeluAndMul.forward_native``; ``approximate`` is ``"none"`` or ``"tanh"``."""
    return _gated(x, approximate)


def _gated(x: torch.Tensor, kind: str) -> torch.Tensor:
    rows, width = as_rows(x), x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], width)
    if out.numel():
        block = min(_MAX_BLOCK, block_of(width))
        _gate_and_mul[(rows.shape[0], triton.cdiv(width, block))](
            rows,
            out,
            rows.stride(0),
            width,
            KIND=_KINDS[kind],
            BLOCK=block,
            num_warps=warps_of(block),
        )
    return out
