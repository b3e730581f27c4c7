"""Older paths of the classes of layers of experts."""

from __future__ import annotations

from typing import Any

from torch import nn

from .fused_moe_method_base import FusedMoEMethodBase
from .routed_experts import RoutedExperts, _refuse

__all__ = ["FusedMoE", "FusedMoEMethodBase", "UnquantizedFusedMoEMethod"]

__surface__ = {
    "FusedMoE": (
        "shape: for isinstance; no model has one, and building one is an error. An older name "
        "of RoutedExperts"
    ),
    "FusedMoEMethodBase": "shape: may be subclassed; nobody asks for it",
    "UnquantizedFusedMoEMethod": "shape: may be subclassed; nobody asks for it",
}


FusedMoE = RoutedExperts


class UnquantizedFusedMoEMethod(FusedMoEMethodBase):
    """The method of experts without a quantization."""

    def create_weights(self, layer: nn.Module, *weight_args: Any, **extra: Any) -> None:
        """
        Raises:
            TypeError: always.
        """
        del layer, weight_args, extra
        _refuse(type(self))
