"""What layers keep of each token, as sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hookserve.ops.kv_cache_spec import AttentionSpec, FullAttentionSpec, KVCacheSpec

__all__ = [
    "AttentionSpec",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheSpec",
    "KVCacheTensor",
    "MLAAttentionSpec",
    "MambaSpec",
    "SlidingWindowSpec",
]

__surface__ = {
    "AttentionSpec": "live: base of what attention layers keep",
    "FullAttentionSpec": "live: what attention layers keep, with a window or without",
    "KVCacheSpec": "live: base of what layers keep",
    "SlidingWindowSpec": (
        "shape: sizes alone; no layer answers it, as blocks belong to all layers alike"
    ),
    "MLAAttentionSpec": "shape: sizes alone; no layer answers it",
    "MambaSpec": "shape: sizes alone; no layer answers it",
    "KVCacheTensor": "shape: holds sizes",
    "KVCacheGroupSpec": "shape: holds names and a spec",
    "KVCacheConfig": (
        "shape: holds the sizes of a cache; the engine's own are block_size and num_blocks"
    ),
    "UniformTypeKVCacheSpecs": "refused: all layers keep the same",
    "ChunkedLocalAttentionSpec": "refused: attention in chunks is not served",
    "CrossAttentionSpec": "refused: no encoder is served",
}


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """Of the last tokens of the context alone."""

    sliding_window: int


@dataclass(frozen=True)
class MLAAttentionSpec(FullAttentionSpec):
    """One latent vector in place of keys and values."""

    @property
    def page_size_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True)
class MambaSpec(KVCacheSpec):
    """States of fixed size."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @property
    def page_size_bytes(self) -> int:
        return sum(
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )


@dataclass
class KVCacheTensor:
    """Memory that layers share.

    Args:
        size: bytes.
        shared_by: the layers' names.
    """

    size: int
    shared_by: list[str]


@dataclass
class KVCacheGroupSpec:
    """Layers that have the same blocks."""

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@dataclass
class KVCacheConfig:
    """The cache of a model."""

    num_blocks: int
    kv_cache_tensors: list[KVCacheTensor]
    kv_cache_groups: list[KVCacheGroupSpec]
