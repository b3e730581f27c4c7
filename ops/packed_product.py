"""``PackedProduct``: a layer's product by ``cpu_linear.c``, with the weight as oneDNN packed it.

Nothing is copied: the kernel reads the packed weight's own memory, after a look whether that is
laid out as the kernel takes it. Where it is not, the product stays oneDNN's (``packed_linear``).
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .cpu_kernels import CpuKernels, is_plain

_PANEL = 64
# Columns that lie together: the C file's WIDTH.
_MIN_COLUMNS_PER_THREAD = 64
# Threads share columns, half a panel at least: with fewer, some would wait for others.


class PackedProduct:
    """Called as ``f(x, bias)``: ``x: [..., in]`` to ``[..., out]``, or ``NotImplemented`` for
    tensors that the kernel does not take."""

    __slots__ = ("_address", "_columns", "_inputs", "_kernels", "_packed")

    def __init__(self, kernels: CpuKernels, packed: torch.Tensor) -> None:
        self._kernels = kernels
        self._packed = packed  # its memory is read
        self._address: int = torch.ops.mkldnn.data_ptr(packed)
        self._columns, self._inputs = packed.shape

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> Any:
        if x.shape[-1] != self._inputs or not is_plain(x):
            return NotImplemented
        if bias is not None and (bias.numel() != self._columns or not is_plain(bias)):
            return NotImplemented
        return self._kernels.multiply(x, self._address, self._columns, bias)


def find_product(
    kernels: CpuKernels | None, packed: torch.Tensor, weight: torch.Tensor
) -> PackedProduct | None:
    """What multiplies by ``packed``; ``None``: oneDNN does.

    Args:
        weight: ``[out, in]`` bfloat16, of which ``packed`` was made.
    """
    if kernels is None or not kernels.can_multiply:
        return None
    if weight.shape[0] < _MIN_COLUMNS_PER_THREAD * torch.get_num_threads():
        return None
    return PackedProduct(kernels, packed) if _is_in_panels(packed, weight) else None


def _is_in_panels(packed: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the memory is ``[out / 64, in / 2, 64, 2]``."""
    columns, inputs = weight.shape
    if columns % _PANEL or inputs % 2 or weight.dtype is not torch.bfloat16:
        return False
    try:
        address, size = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    except (AttributeError, RuntimeError):
        return False  # a torch that does not say where it is
    if size != weight.numel() * weight.element_size():
        return False
    memory = (ctypes.c_char * size).from_address(address)
    found = torch.frombuffer(memory, dtype=torch.int16).view(-1, inputs // 2, _PANEL, 2)
    # As integers: what is not a number is equal to itself too.
    panels = weight.detach().contiguous().view(torch.int16).view(-1, _PANEL, inputs // 2, 2)
    return torch.equal(found, panels.transpose(1, 2))
