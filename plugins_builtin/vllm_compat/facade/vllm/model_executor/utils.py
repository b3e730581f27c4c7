"""Small helpers of models and quantization methods."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from hookserve.ops.parameter import set_weight_attrs

__all__ = ["get_packed_modules_mapping", "set_weight_attrs"]

__surface__ = {
    "set_weight_attrs": (
        "live: sets what a weight's loader reads; an attribute that is set already is an error"
    ),
    "get_packed_modules_mapping": (
        "shape: what the modules of a model say of their fused layers, for a plugin's own loader"
    ),
    "get_moe_expert_mapping": (
        "refused: no architecture with experts is served; a model without them needs none of it"
    ),
}


def get_packed_modules_mapping(model: nn.Module) -> dict[str, list[str]]:
    """Of each fused layer of the model, and of the models within it, the names that it has in the
    checkpoint.

    Raises:
        ValueError: two modules say different things of one name.
    """
    found: dict[str, list[str]] = {}
    for module in model.modules():
        stated: Mapping[str, list[str]] = getattr(module, "packed_modules_mapping", {})
        for name, parts in stated.items():
            if found.setdefault(name, list(parts)) != list(parts):
                raise ValueError(
                    f"packed_modules_mapping has {found[name]} and {list(parts)} for {name!r}"
                )
    return found
