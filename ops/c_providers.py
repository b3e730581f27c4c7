"""The provider ``c``: ops by the compiled kernels of the model that is being built.

A kernel is called for tensors of the kind that it takes; for others the op's own functions are.
The kernels are ``cpu_kernels``'.
"""

from __future__ import annotations

from typing import Any

import torch

from .context import get_kernels
from .cpu_kernels import CpuKernels


def supports(device: torch.device, dtype: torch.dtype) -> bool | str:
    """Whether the model has kernels; those are for one device and one dtype."""
    del device, dtype
    return get_kernels() is not None or "there are no compiled kernels"


class _Provider:
    """Built where ``supports`` has said yes."""

    def __init__(self) -> None:
        kernels = get_kernels()
        assert kernels is not None, "it was asked for before"
        self.kernels: CpuKernels = kernels


class CRMSNorm(_Provider):
    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> Any:
        kernels = self.kernels
        if not kernels.takes_norm(x, residual, weight):
            return NotImplemented
        return kernels.rms_norm(x, residual, weight, eps)


class CSiluAndMul(_Provider):
    def __call__(self, x: torch.Tensor) -> Any:
        kernels = self.kernels
        return kernels.silu_and_mul(x) if kernels.takes_gated(x) else NotImplemented


class CRotaryEmbedding(_Provider):
    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int
    ) -> Any:
        kernels = self.kernels
        if not kernels.takes_rotation(x, cos, sin, head_size):
            return NotImplemented
        return kernels.rotate(x, cos, sin, head_size)
