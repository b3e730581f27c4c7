"""Events of blocks that come and go."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "EventBatch",
    "KVCacheEvent",
    "KVEventBatch",
]

_UNUSED = "shape: for a connector's take_events and its tests; nobody is told of events"
__surface__ = {
    **dict.fromkeys(__all__, _UNUSED),
    "EventPublisher": "refused: nobody is told of blocks that come and go; metrics tell how full "
    "the cache is",
    "EventPublisherFactory": "refused: nobody is told of blocks that come and go; metrics tell how "
    "full the cache is",
}


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    """Seconds."""
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """What happened to blocks."""


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    pass
