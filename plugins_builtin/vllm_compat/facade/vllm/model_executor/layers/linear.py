"""Linear layers, and what computes them."""

from __future__ import annotations

from typing import TypeVar

from hookserve.ops.linear import (
    ColumnParallelLinear,
    LinearBase,
    LinearMethodBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    QuantizeMethodBase,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

__all__ = [
    "WEIGHT_LOADER_V2_SUPPORTED",
    "ColumnParallelLinear",
    "LinearBase",
    "LinearMethodBase",
    "MergedColumnParallelLinear",
    "QKVParallelLinear",
    "QuantizeMethodBase",
    "ReplicatedLinear",
    "RowParallelLinear",
    "UnquantizedLinearMethod",
    "register_weight_loader_v2_supported_method",
]

__surface__ = {
    "ColumnParallelLinear": "live: models build it",
    "MergedColumnParallelLinear": "live: models build it",
    "QKVParallelLinear": "live: models build it",
    "ReplicatedLinear": "live: models build it",
    "RowParallelLinear": "live: models build it",
    "LinearBase": "live: base of the linear layers",
    "LinearMethodBase": "live: base of what a quantization computes a linear layer with",
    "QuantizeMethodBase": "live: base of what a quantization computes a layer with",
    "UnquantizedLinearMethod": (
        "live: computes a linear layer without a quantization; a class or a patch with an "
        "apply of its own gets plain weights"
    ),
    "WEIGHT_LOADER_V2_SUPPORTED": (
        "shape: the list that register_weight_loader_v2_supported_method appends to; a "
        "parameter's own class decides how it is loaded"
    ),
    "register_weight_loader_v2_supported_method": (
        "shape: notes the name of the class in WEIGHT_LOADER_V2_SUPPORTED"
    ),
}


T = TypeVar("T", bound=type)

WEIGHT_LOADER_V2_SUPPORTED = [UnquantizedLinearMethod.__name__]


def register_weight_loader_v2_supported_method(cls: T) -> T:
    """Class decorator, for a method that creates parameters of ``vllm.model_executor.parameter``.
    Layers load such parameters by their own methods in any case."""
    WEIGHT_LOADER_V2_SUPPORTED.append(cls.__name__)
    return cls
