"""How kernels are launched: blocks, warps, and rows of memory."""

from __future__ import annotations

import torch


def block_of(count: int) -> int:
    """The power of two that holds ``count``: the width of a program's tensors."""
    return 1 << max(0, count - 1).bit_length()


def warps_of(block: int) -> int:
    """Warps of a program over ``block`` numbers: some eight of them a thread."""
    return min(16, max(1, block // 256))


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """``x: [..., width]`` as ``[rows, width]``, of which each row lies in one piece: a view where
    that can be, else a copy."""
    rows = x.reshape(-1, x.shape[-1]) if x.numel() else x.new_empty(0, x.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()
