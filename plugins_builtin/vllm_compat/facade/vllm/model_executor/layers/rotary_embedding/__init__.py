"""Rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hookserve.ops import rotary_embedding
from hookserve.ops.rotary_embedding import RotaryEmbedding

__all__ = ["RotaryEmbedding", "get_rope"]

__surface__ = {
    "RotaryEmbedding": (
        "live: get_rope builds it where whole heads turn; a scaled rotation is the same class with "
        "its frequencies by keyword. There is no cos_sin_cache"
    ),
    "get_rope": (
        "live: models take their rotary embedding from it; halves of a head turn, interleaved "
        "pairs are refused. rotary_dim, base, rope_scaling and partial_rotary_factor of older "
        "releases are taken by name"
    ),
    "MRotaryEmbedding": "refused: positions have one row here, as no images or sound are taken",
    "DualChunkRotaryEmbedding": "refused: no attention in chunks is served",
}


def get_rope(
    head_size: int,
    max_position: int,
    is_neox_style: bool = True,
    rope_parameters: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    *,
    rotary_dim: int | None = None,
    base: float | None = None,
    rope_scaling: Mapping[str, Any] | None = None,
    partial_rotary_factor: float = 1.0,
) -> RotaryEmbedding:
    """As the server's own, with what older releases were given apart.

    Args:
        rotary_dim: how many elements of a head turn, before ``partial_rotary_factor``.
        base: ``rope_theta``, unless the parameters state it.
        rope_scaling: parameters without those two.
    """
    parameters = {**(rope_scaling or {}), **(rope_parameters or {})}
    if base is not None:
        parameters.setdefault("rope_theta", base)
    turning = int((rotary_dim or head_size) * partial_rotary_factor)
    if turning != head_size:
        # The half keeps the product of factor and size from falling below the number.
        parameters["partial_rotary_factor"] = (turning + 0.5) / head_size
    return rotary_embedding.get_rope(
        head_size, max_position, is_neox_style, parameters or None, dtype
    )
