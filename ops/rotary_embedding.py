"""Rotary position embeddings: the plain kind, and its linear and llama3 scalings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .context import get_model_context, step_cache

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")


class RotaryEmbedding(nn.Module):
    """Rotates the pairs ``(i, i + head_size / 2)`` of each head by ``position * inv_freq[i]``."""

    def __init__(self, head_size: int, inv_freq: torch.Tensor) -> None:
        super().__init__()
        self.head_size = head_size
        self.inv_freq: torch.Tensor
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate ``query: [tokens, heads * head_size]`` and ``key: [tokens, kv_heads *
        head_size]`` by ``positions: [tokens]``. Returns new tensors, rows of which may be
        strided."""
        cos, sin = self._rotation(positions, query.dtype)
        width = query.shape[-1]
        if not _is_followed_by(query, key):
            return self._rotate(query, cos, sin), self._rotate(key, cos, sin)
        both = query.as_strided((query.shape[0], width + key.shape[-1]), query.stride())
        rotated = self._rotate(both, cos, sin)
        return rotated[:, :width], rotated[:, width:]

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[0], -1, self.head_size)  # [tokens, heads, head_size]
        # Rolling by half a head swaps its halves; ``sin`` carries the sign of the first one.
        swapped = heads.roll(self.head_size // 2, -1)
        return torch.addcmul(heads * cos, swapped, sin).view(x.shape)

    def _rotation(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``cos`` and signed ``sin``: ``[tokens, 1, head_size]``; once a step, for all layers."""
        cache = step_cache()
        if cache is not None:
            kept = cache.get((self, dtype))
            if kept is not None and kept[0] is positions:
                return kept[1], kept[2]
        angles = positions[:, None].float() * self.inv_freq  # [tokens, head_size / 2]
        cos, sin = angles.cos(), angles.sin()
        cos = torch.cat((cos, cos), dim=-1)[:, None].to(dtype)
        sin = torch.cat((-sin, sin), dim=-1)[:, None].to(dtype)
        if cache is not None:
            cache[(self, dtype)] = (positions, cos, sin)
        return cos, sin


def _is_followed_by(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether each row of ``key`` follows its row of ``query`` in memory, as in the output of a
    merged projection; rotating both at once halves the calls."""
    stride = query.stride()
    return (
        len(stride) == 2
        and stride == key.stride()
        and stride[1] == 1
        and stride[0] >= query.shape[1] + key.shape[1]
        and key.data_ptr() == query.data_ptr() + query.shape[1] * query.itemsize
    )


def get_rope(
    head_size: int,
    max_position: int,
    is_neox_style: bool = True,
    rope_parameters: Mapping[str, Any] | None = None,
) -> RotaryEmbedding:
    """The rotary embedding for these parameters, shared by the layers of one model.

    Args:
        head_size: all of a head is rotated.
        max_position: positions the model was trained for, the default of scalings that need it.
        is_neox_style: pairs are halves of a head; interleaved pairs are not supported.
        rope_parameters: ``rope_theta``, ``rope_type`` and the scaling's own keys.

    Raises:
        ValueError: for a kind of rotation that is not supported; the message lists those that
            are.
    """
    parameters = dict(rope_parameters or {})
    if not is_neox_style:
        raise ValueError("rotary embeddings over interleaved pairs are not supported")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("rotary embeddings over a part of a head are not supported")
    context = get_model_context()
    scaling = tuple(sorted((name, repr(value)) for name, value in parameters.items()))
    key = ("rope", head_size, max_position, scaling)
    if context is not None and key in context.shared:
        shared: RotaryEmbedding = context.shared[key]
        return shared
    rope = RotaryEmbedding(head_size, _inverse_frequencies(head_size, max_position, parameters))
    if context is not None:
        context.shared[key] = rope
    return rope


def _inverse_frequencies(
    head_size: int, max_position: int, parameters: Mapping[str, Any]
) -> torch.Tensor:
    """``[head_size / 2]`` float32."""
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    base = float(parameters.get("rope_theta", 10000.0))
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    inv_freq = 1.0 / base**exponents
    if rope_type == "default":
        return inv_freq
    if rope_type == "linear":
        return inv_freq / float(_required(parameters, "factor", rope_type))
    if rope_type == "llama3":
        return _llama3(inv_freq, max_position, parameters)
    raise ValueError(
        f"rope type {rope_type!r} is not supported; supported are {', '.join(SUPPORTED_ROPE_TYPES)}"
    )


def _llama3(
    inv_freq: torch.Tensor, max_position: int, parameters: Mapping[str, Any]
) -> torch.Tensor:
    """Slow rotations are slowed further by ``factor``, fast ones kept, those between blended."""
    factor = float(_required(parameters, "factor", "llama3"))
    low = float(_required(parameters, "low_freq_factor", "llama3"))
    high = float(_required(parameters, "high_freq_factor", "llama3"))
    trained = float(parameters.get("original_max_position_embeddings", max_position))
    turns = trained * inv_freq / (2 * math.pi)  # full turns within the trained context
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return inv_freq / factor * (1 - blend) + inv_freq * blend


def _required(parameters: Mapping[str, Any], name: str, rope_type: str) -> Any:
    if name not in parameters:
        raise ValueError(f"rope type {rope_type!r} needs {name!r} in the model's configuration")
    return parameters[name]
