"""Root-mean-square normalisation in two kinds, alone or joined with the residual addition; and the
normalisation by mean and variance that models of other packages use."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .custom_op import CustomOp


@CustomOp.register("rms_norm")
class RMSNorm(CustomOp):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension.

    The statistics and the division are in float32; the result has the input's dtype.

    Providers: ``f(x, residual, weight, eps)``, where ``residual`` may be ``None``, gives
    ``(normalised, x + residual)``, the second ``None`` without a residual.
    """

    weight: torch.Tensor

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        var_hidden_size: int | None = None,
        has_weight: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """
        Args:
            var_hidden_size: elements whose mean counts; other than all of them is refused.
            has_weight: without it the weight is one, and no checkpoint holds it.
        """
        super().__init__()
        if var_hidden_size not in (None, hidden_size):
            raise ValueError(
                f"a norm over {hidden_size} elements by the mean of {var_hidden_size} is not "
                "supported; leave var_hidden_size out"
            )
        self.hidden_size = hidden_size
        self.variance_epsilon = eps
        ones = torch.ones(hidden_size, dtype=dtype or torch.get_default_dtype())
        if has_weight:
            self.weight = nn.Parameter(ones, requires_grad=False)
        else:
            self.register_buffer("weight", ones, persistent=False)
        self._floor: torch.Tensor | None = None

    def forward_provided(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        answer = self._provided(x, residual, self.weight, self.variance_epsilon)
        if answer is NotImplemented:
            return self.forward_native(x, residual)
        normalised, total = answer
        return normalised if residual is None else (normalised, total)

    def forward_native(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Normalise ``x: [..., hidden]``.

        With a residual of the same shape: returns ``(normalised x + residual, x + residual)``.
        """
        if residual is None:
            return self._normalise(x)
        residual = x + residual
        return self._normalise(residual), residual

    def _normalise(self, x: torch.Tensor) -> torch.Tensor:
        # sqrt(mean(x^2) + eps) is hypot(|x|, sqrt(hidden * eps)) / sqrt(hidden): two calls on
        # one number a row in place of five, which is what a short batch spends its time on.
        root = math.sqrt(self.hidden_size)
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        floor = self._floor
        if floor is None or floor.device != x.device:
            floor = self._floor = norm.new_tensor(root * math.sqrt(self.variance_epsilon))
        norm = norm.hypot(floor).div_(root)
        return self._scale(wide / norm, x.dtype)

    def _scale(self, normalised: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The float32 ``normalised``, weighted, in ``dtype``."""
        return normalised.to(dtype).mul_(self.weight)


@CustomOp.register("gemma_rms_norm")
class GemmaRMSNorm(RMSNorm):
    """``x / sqrt(mean(x^2) + eps) * (1 + weight)``: what is stored is the distance from one.

    Weighted in float32, as Gemma is; ``RMSNorm`` weights in the input's dtype.
    """

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(hidden_size, eps, dtype=dtype)
        self.weight.data.zero_()

    def _scale(self, normalised: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return normalised.mul_(1.0 + self.weight.float()).to(dtype)


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dimension, computed and
    weighted in float32; the result has the input's dtype."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim, dtype=torch.float32), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(dim, dtype=torch.float32), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x: [..., dim]`` to the same shape."""
        return F.layer_norm(x.float(), (self.dim,), self.weight, self.bias, self.eps).to(x.dtype)
