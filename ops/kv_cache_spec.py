"""What a layer needs in the KV cache, as sizes; the engine turns it into blocks and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KVCacheSpec:
    """Base: a cache made of blocks of ``block_size`` tokens."""

    block_size: int

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer."""
        raise TypeError(f"{type(self).__name__} does not say how large a block is")


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """Base: keys and values, of as many heads of this size."""

    num_kv_heads: int
    head_size: int
    dtype: torch.dtype

    @property
    def page_size_bytes(self) -> int:
        return 2 * self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """Of every token of the context."""
