"""Activations of feed-forward layers, gated and plain, and their names in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from .custom_op import CustomOp


@CustomOp.register("silu_and_mul")
class SiluAndMul(CustomOp):
    """``silu(x[..., :d]) * x[..., d:]`` for ``x: [..., 2 * d]``.

    Providers: ``f(x)``.
    """

    def forward_provided(self, x: torch.Tensor) -> torch.Tensor:
        answer = self._provided(x)
        return self.forward_native(x) if answer is NotImplemented else answer

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


@CustomOp.register("gelu_and_mul")
class GeluAndMul(CustomOp):
    """``gelu(x[..., :d]) * x[..., d:]`` for ``x: [..., 2 * d]``.

    Providers: ``f(x, approximate)``.

    Args:
        approximate: ``"none"``: by the error function; ``"tanh"``: by its usual approximation.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}; expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward_provided(self, x: torch.Tensor) -> torch.Tensor:
        answer = self._provided(x, self.approximate)
        return self.forward_native(x) if answer is NotImplemented else answer

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
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
