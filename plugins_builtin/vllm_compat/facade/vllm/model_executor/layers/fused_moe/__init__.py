"""Layers of experts, as far as a package needs their classes to tell that a model has none."""

from __future__ import annotations

from .fused_moe_method_base import FusedMoEMethodBase
from .layer import FusedMoE, UnquantizedFusedMoEMethod
from .routed_experts import RoutedExperts

__all__ = ["FusedMoE", "FusedMoEMethodBase", "RoutedExperts", "UnquantizedFusedMoEMethod"]

__surface__ = {
    "FusedMoE": (
        "shape: for isinstance; no model has one, and building one is an error. An older name "
        "of RoutedExperts"
    ),
    "FusedMoEMethodBase": "shape: may be subclassed; nobody asks for it",
    "RoutedExperts": "shape: for isinstance; no model has one, and building one is an error",
    "UnquantizedFusedMoEMethod": "shape: may be subclassed; nobody asks for it",
    "FusedMoEConfig": (
        "refused: no architecture with experts is served; a model without them needs none of it"
    ),
    "FusedMoEQuantConfig": (
        "refused: no architecture with experts is served; a model without them needs none of it"
    ),
    "fused_experts": (
        "refused: no architecture with experts is served; a model without them needs none of it"
    ),
    "SharedFusedMoE": (
        "refused: no architecture with experts is served; a model without them needs none of it"
    ),
}
