"""The provider ``triton``: ops by Triton's kernels, chosen by itself on a CUDA device.

A kernel is called for tensors of the kind that it takes; for others the op's own functions are.
Kernels, and with them Triton, are imported when a provider is made.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .availability import DTYPES, is_named, why_not


class _Provider:
    """Of one op; made where ``supports`` has said yes."""

    op: ClassVar[str]
    """The registered name."""

    @classmethod
    def supports(cls, device: torch.device, dtype: torch.dtype) -> bool | str:
        if dtype not in DTYPES:
            return f"the kernels do not compute in {dtype}"
        if device.type == "cpu" and not is_named(cls.op):
            return "Triton is for GPUs, and its interpreter for those who name it"
        return why_not(device) or True


class TritonRMSNorm(_Provider):
    op = "rms_norm"
    is_gemma: ClassVar[bool] = False

    def __init__(self) -> None:
        from .norms import MAX_WIDTH, rms_norm

        self.kernel, self.max_width = rms_norm, MAX_WIDTH

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> Any:
        width = x.shape[-1]
        takes = (
            _is_one_kind(x, weight, x if residual is None else residual)
            and width <= self.max_width
            and tuple(weight.shape) == (width,)
            and weight.is_contiguous()
            and (residual is None or residual.shape == x.shape)
        )
        if not takes:
            return NotImplemented
        return self.kernel(x, residual, weight, eps, is_gemma=self.is_gemma)


class TritonGemmaRMSNorm(TritonRMSNorm):
    op = "gemma_rms_norm"
    is_gemma = True


class TritonSiluAndMul(_Provider):
    op = "silu_and_mul"

    def __init__(self) -> None:
        from .activations import silu_and_mul

        self.kernel = silu_and_mul

    def __call__(self, x: torch.Tensor) -> Any:
        return self.kernel(x) if _is_gated(x) else NotImplemented


class TritonGeluAndMul(_Provider):
    op = "gelu_and_mul"

    def __init__(self) -> None:
        from .activations import gelu_and_mul

        self.kernel = gelu_and_mul

    def __call__(self, x: torch.Tensor, approximate: str) -> Any:
        return self.kernel(x, approximate) if _is_gated(x) else NotImplemented


class TritonRotaryEmbedding(_Provider):
    op = "rotary_embedding"

    def __init__(self) -> None:
        from .rotations import rotate

        self.kernel = rotate

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int
    ) -> Any:
        turning = cos.shape[-1]
        takes = (
            _is_one_kind(x, cos, sin)
            and x.dim() == 2
            and x.stride(1) == 1
            and x.shape[1] % head_size == 0
            and turning % 2 == 0
            and 0 < turning <= head_size
            and cos.shape == sin.shape == (x.shape[0], 1, turning)
            and cos.stride(2) == sin.stride(2) == 1
        )
        return self.kernel(x, cos, sin, head_size) if takes else NotImplemented


class TritonPartialRotaryEmbedding(TritonRotaryEmbedding):
    op = "partial_rotary_embedding"


class TritonKVWrite(_Provider):
    op = "kv_write"

    def __init__(self) -> None:
        from .cache_writes import write_cache

        self.kernel = write_cache

    def __call__(
        self, cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> Any:
        return self.kernel(cache, key, value, slots)


def _is_one_kind(first: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether the tensors are of one type, which kernels compute in, on one device."""
    return first.dtype in DTYPES and all(
        other.dtype == first.dtype and other.device == first.device for other in others
    )


def _is_gated(x: torch.Tensor) -> bool:
    return x.dtype in DTYPES and x.dim() > 0 and x.shape[-1] % 2 == 0
