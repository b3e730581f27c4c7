"""What the blocks of the KV cache are known by."""

from __future__ import annotations

__all__ = ["BlockHash"]

__surface__ = {
    "BlockHash": "live: entries of Request.block_hashes, one for each full block",
    "BlockHashWithGroupId": "refused: there is one group of layers",
    "FreeKVCacheBlockQueue": "refused: blocks are numbers here; BlockPool keeps the free ones",
    "KVCacheBlock": "refused: blocks are numbers here; read Request.block_ids",
    "check_enough_kv_cache_memory": "refused: the engine sizes the cache by "
    "kv_cache_memory_bytes or by what is free",
    "get_kv_cache_config": "refused: all layers share blocks of one size",
}

BlockHash = bytes
