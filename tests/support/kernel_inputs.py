"""Random inputs for kernels, in any order of memory, among numbers that must not be read; and how
near a kernel comes to its twin."""

from __future__ import annotations

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TOLERANCES = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-6}
"""Relative. Triton's interpreter cuts bfloat16 off where a GPU and torch round, once or twice in
each kernel here."""


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def apart(x: torch.Tensor, gap: int = 5) -> torch.Tensor:
    """The same rows, each one inside a longer one that is not a number."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 2 * gap), torch.nan, dtype=x.dtype)
    inner = wide[..., gap : gap + x.shape[-1]]
    inner.copy_(x)
    return inner


def by_column(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, in memory column by column."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def check_close(got: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    """Of the same type, and within what the type can hold.

    Args:
        scale: how large the numbers are between which a result is the difference.
    """
    near = _TOLERANCES[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=near, atol=near * scale / 4, equal_nan=True)
