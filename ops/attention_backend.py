"""What an attention backend is: what it can do, and the class that computes a layer.

The names are the ecosystem's. The layer that uses one is ``attention``; which one it uses is the
engine's choice; the built-in one is ``paged_attention``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from .attention_builder import AttentionMetadataBuilder
from .context import AttentionMetadata
from .kv_cache_spec import KVCacheSpec


class AttentionImpl:
    """What computes one layer.

    Attributes:
        writes_output: ``forward`` is given a tensor to fill; else it returns one of its own.
    """

    writes_output: ClassVar[bool] = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        """Called by the layer, positionally, inside the context in which the model is built.

        Args:
            num_heads: of this rank, as ``num_kv_heads``.
            scale: scores are multiplied by it.
            sliding_window: a token sees so many tokens at most, itself the last of them.
            logits_soft_cap: scores are kept within it, as ``cap * tanh(score / cap)``.
            alibi_slopes, kv_cache_dtype, attn_type, kv_sharing_target_layer_name: always at their
                defaults; layers refuse others.
        """
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.logits_soft_cap = logits_soft_cap

    def do_kv_cache_update(
        self,
        layer: nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Append the step's keys and values to the cache, if the backend's ``forward`` does not.

        Args:
            key: ``[tokens, num_kv_heads, head_size]``, as ``value``.
            slot_mapping: ``[tokens]`` int64: ``block * block_size + offset`` of each.
        """
        raise TypeError(f"{type(self).__qualname__} must define do_kv_cache_update")

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Told the layer's cache once it is there: zeros, of the shape that the backend stated."""

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Called once, when the model's weights are in."""

    def forward(
        self,
        layer: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: AttentionMetadata,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Append the step's keys and values to the cache, and attend.

        Args:
            query: ``[tokens, num_heads, head_size]``; rows may be strided, as in the next two.
            key: ``[tokens, num_kv_heads, head_size]``, as ``value``.
            output: ``[tokens, num_heads, head_size]`` to fill, if ``writes_output``.

        Returns:
            ``output``, or as many numbers in the same order.
        """
        raise TypeError(f"{type(self).__qualname__} must define forward")


class AttentionLayerBase:
    """Base of the layers that keep something of each token in the KV cache, and stand for that in
    ``static_forward_context`` under their name.

    Attributes:
        kv_cache: the layer's, once there is one; zeros at first.
    """

    layer_name: str
    num_kv_heads: int
    head_size: int
    kv_cache: torch.Tensor

    def get_attn_backend(self) -> type[AttentionBackend]:
        """What computes the layer."""
        raise TypeError(f"{type(self).__qualname__} must define get_attn_backend")

    def get_kv_cache_spec(self, vllm_config: Any) -> KVCacheSpec | None:
        """What the layer keeps of each token; ``None``: nothing."""
        raise TypeError(f"{type(self).__qualname__} must define get_kv_cache_spec")

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of the tensor to give to ``bind_kv_cache``."""
        backend = self.get_attn_backend()
        shape = backend.get_kv_cache_shape(
            num_blocks, block_size, self.num_kv_heads, self.head_size
        )
        expected = num_blocks * 2 * self.num_kv_heads * block_size * self.head_size
        if math.prod(shape) != expected:
            raise ValueError(
                f"attention layer {self.layer_name!r}: the attention backend "
                f"{backend.get_name()!r} wants a KV cache of shape {tuple(shape)}; "
                f"expected {expected} numbers, keys and values of {num_blocks} blocks"
            )
        if shape[0] != num_blocks:
            raise ValueError(
                f"attention layer {self.layer_name!r}: the attention backend "
                f"{backend.get_name()!r} wants a KV cache of shape {tuple(shape)}; "
                f"expected its {num_blocks} blocks in the first dimension"
            )
        return shape

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Use ``kv_cache`` from now on."""
        self.kv_cache = kv_cache


class AttentionBackend:
    """Static facts; never instantiated. What is not said to be supported is refused when a layer
    asks for it, before any weight is read."""

    supported_dtypes: ClassVar[Sequence[torch.dtype]] = ()
    """Empty: all."""
    forward_includes_kv_cache_update: ClassVar[bool] = True
    """Whether ``forward`` appends the step's keys and values itself; else the layer calls
    ``do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)`` before it."""

    @staticmethod
    def get_name() -> str:
        raise TypeError("an attention backend must define get_name")

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        raise TypeError("an attention backend must define get_impl_cls")

    @staticmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder] | None:
        """What makes the metadata that ``forward`` is given; ``None``: it takes
        ``context.AttentionMetadata``."""
        return None

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Of a layer's cache; blocks come first, and each holds keys and values of
        ``block_size`` tokens."""
        return (num_blocks, 2, num_kv_heads, block_size, head_size)

    @staticmethod
    def get_supported_head_sizes() -> Sequence[int]:
        """Empty: all."""
        return ()

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        sizes = cls.get_supported_head_sizes()
        return not sizes or head_size in sizes

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        return not cls.supported_dtypes or dtype in cls.supported_dtypes

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        """``None``: not known yet."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return False

    @classmethod
    def supports_logits_soft_cap(cls) -> bool:
        return False

    @classmethod
    def validate_configuration(
        cls,
        head_size: int,
        dtype: torch.dtype,
        block_size: int | None,
        sliding_window: int | None,
        logits_soft_cap: float | None,
    ) -> list[str]:
        """Why a layer cannot use this backend; empty if it can."""
        asked: list[tuple[str, Any, bool]] = [
            ("head size", head_size, cls.supports_head_size(head_size)),
            ("dtype", dtype, cls.supports_dtype(dtype)),
            ("block size", block_size, cls.supports_block_size(block_size)),
            ("sliding window", sliding_window, cls.supports_sliding_window()),
            ("soft cap of the scores", logits_soft_cap, cls.supports_logits_soft_cap()),
        ]
        return [f"{what} {value}" for what, value, can in asked if value is not None and not can]


def check_kv_cache(
    backend: type[AttentionBackend], kv_cache: torch.Tensor, num_kv_heads: int, head_size: int
) -> None:
    """For a backend whose cache has blocks in its first dimension, and a block's tokens in the
    second last.

    Raises:
        ValueError: the cache has not the shape that the backend states.
    """
    expected = backend.get_kv_cache_shape(
        kv_cache.shape[0], kv_cache.shape[-2], num_kv_heads, head_size
    )
    if tuple(kv_cache.shape) != expected:
        raise ValueError(f"a KV cache of shape {expected} is needed, not {tuple(kv_cache.shape)}")
