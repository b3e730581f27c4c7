"""Activations of feed-forward layers."""

from __future__ import annotations

from hookserve.ops.activation import GeluAndMul, SiluAndMul, get_act_and_mul_fn, get_act_fn

__all__ = ["GeluAndMul", "SiluAndMul", "get_act_and_mul_fn", "get_act_fn"]

__surface__ = {
    "GeluAndMul": "live: models build it",
    "SiluAndMul": "live: models build it",
    "get_act_and_mul_fn": "live: models take their gated activation from it",
    "get_act_fn": "live: models take their activation from it",
    "FastGELU": (
        "refused: no architecture that is served uses it; compute it in the model with torch"
    ),
    "FatreluAndMul": (
        "refused: no architecture that is served uses it; compute it in the model with torch"
    ),
    "MulAndSilu": (
        "refused: no architecture that is served uses it; compute it in the model with torch"
    ),
    "NewGELU": (
        "refused: no architecture that is served uses it; compute it in the model with torch"
    ),
    "QuickGELU": (
        "refused: no architecture that is served uses it; compute it in the model with torch"
    ),
    "ReLUSquaredActivation": (
        "refused: no architecture that is served uses it; compute it in the model with torch"
    ),
    "SwigluOAIAndMul": (
        "refused: no architecture that is served uses it; compute it in the model with torch"
    ),
    "XIELU": "refused: no architecture that is served uses it; compute it in the model with torch",
}
