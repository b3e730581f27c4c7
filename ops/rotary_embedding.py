"""Rotary position embeddings over all of a head or its first part.

Which angle a pair turns by is ``rotary_frequencies``' business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .context import get_model_context, step_cache
from .custom_op import CustomOp
from .rotary_frequencies import base_of, kind_of, rotary_frequencies


@CustomOp.register("rotary_embedding")
class RotaryEmbedding(CustomOp):
    """Rotates the pairs ``(i, i + head_size / 2)`` of each head by ``position * inv_freq[i]``.

    Providers: ``f(x, cos, sin, head_size)`` rotates ``x: [tokens, heads * head_size]``, rows of
    which may be strided, by ``cos`` and ``sin: [tokens, 1, head_size]``, of which ``sin`` carries
    the sign of each half.

    Args:
        head_size: elements of a head.
        rotary_dim: of which so many turn: here all of them.
        max_position_embeddings: positions that the model was trained for; more can be asked for.
        base: ``inv_freq[i]`` is ``base^(-2i / rotary_dim)``.
        is_neox_style: pairs are halves of a head; interleaved pairs are not supported.
        dtype: of the model; what is rotated keeps its own.
        inv_freq: ``[rotary_dim / 2]`` float32, in place of those of the base.
        attention_factor: cosines and sines are multiplied by it, and with them queries and keys.

    Raises:
        ValueError: for a rotation of another kind.
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        is_neox_style: bool,
        dtype: torch.dtype,
        *,
        inv_freq: torch.Tensor | None = None,
        attention_factor: float = 1.0,
    ) -> None:
        super().__init__()
        _check(head_size, rotary_dim, is_neox_style)
        if rotary_dim != head_size and not isinstance(self, PartialRotaryEmbedding):
            raise ValueError(
                f"{type(self).__name__} turns whole heads; a rotation of {rotary_dim} of "
                f"{head_size} elements is PartialRotaryEmbedding, which get_rope builds"
            )
        self.head_size = head_size
        self.rotary_dim = rotary_dim
        self.max_position_embeddings = max_position_embeddings
        self.base = base
        self.is_neox_style = is_neox_style
        self.dtype = dtype
        self.attention_factor = attention_factor
        if inv_freq is None:
            inv_freq, _ = _frequencies(rotary_dim, max_position_embeddings, {"rope_theta": base})
        self.inv_freq: torch.Tensor
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward_native(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate ``query: [tokens, heads * head_size]`` and ``key: [tokens, kv_heads *
        head_size]``, if there is one, by ``positions: [tokens]``. Returns new tensors, rows of
        which may be strided."""
        return self._turn(self._rotate, positions, query, key)

    def forward_provided(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._turn(self._rotate_provided, positions, query, key)

    def _turn(
        self,
        rotate: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        cos, sin = self._rotation(positions, query.dtype)
        if key is None:
            return rotate(query, cos, sin), None
        width = query.shape[-1]
        if not _is_followed_by(query, key):
            return rotate(query, cos, sin), rotate(key, cos, sin)
        both = query.as_strided((query.shape[0], width + key.shape[-1]), query.stride())
        rotated = rotate(both, cos, sin)
        return rotated[:, :width], rotated[:, width:]

    def _rotate_provided(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        answer = self._provided(x, cos, sin, self.head_size)
        return self._rotate(x, cos, sin) if answer is NotImplemented else answer

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[0], -1, self.head_size)  # [tokens, heads, head_size]
        # Rolling by half a head swaps its halves; ``sin`` carries the sign of the first one.
        swapped = heads.roll(self.head_size // 2, -1)
        return torch.addcmul(heads * cos, swapped, sin).view(x.shape)

    def _rotation(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``cos`` and signed ``sin``: ``[tokens, 1, 2 * pairs]``; once a step, for all layers."""
        cache = step_cache()
        if cache is not None:
            kept = cache.get((self, dtype))
            if kept is not None and kept[0] is positions:
                return kept[1], kept[2]
        angles = positions[:, None].float() * self.inv_freq  # [tokens, pairs]
        cos, sin = angles.cos(), angles.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        cos = torch.cat((cos, cos), dim=-1)[:, None].to(dtype)
        sin = torch.cat((-sin, sin), dim=-1)[:, None].to(dtype)
        if cache is not None:
            cache[(self, dtype)] = (positions, cos, sin)
        return cos, sin


@CustomOp.register("partial_rotary_embedding")
class PartialRotaryEmbedding(RotaryEmbedding):
    """Rotates the first ``2 * len(inv_freq)`` elements of each head; the rest stay.

    Providers: as of ``RotaryEmbedding``; ``cos`` and ``sin`` are as wide as what turns.
    """

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[0], -1, self.head_size)  # [tokens, heads, head_size]
        rotary_dim = cos.shape[-1]
        turning, staying = heads[..., :rotary_dim], heads[..., rotary_dim:]
        swapped = turning.roll(rotary_dim // 2, -1)
        turned = torch.addcmul(turning * cos, swapped, sin)
        return torch.cat((turned, staying), dim=-1).view(x.shape)


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
    dtype: torch.dtype | None = None,
) -> RotaryEmbedding:
    """The rotary embedding for these parameters, shared by the layers of one model.

    Args:
        head_size: elements of a head; ``partial_rotary_factor`` says how many of them turn.
        max_position: positions the model was trained for, the default of scalings that need it.
        is_neox_style: pairs are halves of a head; interleaved pairs are not supported.
        rope_parameters: ``rope_theta``, ``rope_type``, ``partial_rotary_factor`` and the
            scaling's own keys (``rotary_frequencies``).
        dtype: of what is turned; ``None``: torch's default one.

    Raises:
        ValueError: for a kind of rotation that is not supported; the message lists those that
            are.
    """
    parameters = dict(rope_parameters or {})
    rotary_dim = int(head_size * float(parameters.get("partial_rotary_factor") or 1.0))
    _check(head_size, rotary_dim, is_neox_style)
    context = get_model_context()
    scaling = tuple(sorted((name, repr(value)) for name, value in parameters.items()))
    dtype = dtype or torch.get_default_dtype()
    key = ("rope", head_size, max_position, scaling, dtype)
    if context is not None and key in context.shared:
        shared: RotaryEmbedding = context.shared[key]
        return shared
    kind = RotaryEmbedding if rotary_dim == head_size else PartialRotaryEmbedding
    own: dict[str, Any] = {}
    if kind_of(parameters) != "default":
        max_length = context.max_model_len if context else None
        inv_freq, factor = _frequencies(rotary_dim, max_position, parameters, max_length)
        own = {"inv_freq": inv_freq, "attention_factor": factor}
    base = base_of(parameters)
    rope = kind(head_size, rotary_dim, max_position, base, is_neox_style, dtype, **own)
    if context is not None:
        context.shared[key] = rope
    return rope


def _check(head_size: int, rotary_dim: int, is_neox_style: bool) -> None:
    if not is_neox_style:
        raise ValueError("rotary embeddings over interleaved pairs are not supported")
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise ValueError(
            f"rotary embeddings turn pairs: {rotary_dim} of a head's {head_size} elements cannot "
            "be rotated"
        )


def _frequencies(
    dim: int, max_position: int, parameters: Mapping[str, Any], max_length: int | None = None
) -> tuple[torch.Tensor, float]:
    """``rotary_frequencies``, computed where models are checked: on a GPU a power ends in other
    digits, which far positions multiply."""
    device = torch.get_default_device()
    with torch.device("cpu"):
        inv_freq, factor = rotary_frequencies(dim, max_position, parameters, max_length)
    return inv_freq.to(device), factor
