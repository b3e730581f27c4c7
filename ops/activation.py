"""Activations of feed-forward layers, gated and plain, and their names in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from .context import get_model_context


class SiluAndMul(nn.Module):
    """``silu(x[..., :d]) * x[..., d:]`` for ``x: [..., 2 * d]``."""

    def __init__(self) -> None:
        super().__init__()
        context = get_model_context()
        self._kernels = context.kernels if context else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._kernels is not None and self._kernels.takes_gated(x):
            return self._kernels.silu_and_mul(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class GeluAndMul(nn.Module):
    """``gelu(x[..., :d]) * x[..., d:]`` for ``x: [..., 2 * d]``.

    Args:
        approximate: ``"none"``: by the error function; ``"tanh"``: by its usual approximation.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}; expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate, approximate=self.approximate).mul_(up)


_GATED: Mapping[str, Callable[[], nn.Module]] = {
    "silu": SiluAndMul,
    "gelu": GeluAndMul,
    "gelu_new": lambda: GeluAndMul(approximate="tanh"),
    "gelu_pytorch_tanh": lambda: GeluAndMul(approximate="tanh"),
}
_PLAIN: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu_new": lambda: nn.GELU(approximate="tanh"),
    "gelu_pytorch_tanh": lambda: nn.GELU(approximate="tanh"),
}


def get_act_and_mul_fn(act_fn_name: str) -> nn.Module:
    """The gated activation of this name: ``[..., 2 * d]`` to ``[..., d]``.

    Raises:
        ValueError: for another name; the message lists those there are.
    """
    return _named(_GATED, act_fn_name)


def get_act_fn(act_fn_name: str) -> nn.Module:
    """The activation of this name, which keeps the shape.

    Raises:
        ValueError: for another name; the message lists those there are.
    """
    return _named(_PLAIN, act_fn_name)


def _named(activations: Mapping[str, Callable[[], nn.Module]], name: str) -> nn.Module:
    if name not in activations:
        raise ValueError(f"one of {', '.join(activations)}")
    return activations[name]()
