"""Which blocks of the KV cache are whose."""

from __future__ import annotations

from hookserve.engine.kv_cache import KVCacheManager

__all__ = ["KVCacheManager"]

__surface__ = {
    "KVCacheManager": "live: Scheduler.kv_cache_manager; usage and block_pool are as in vLLM, "
    "its methods are the engine's own (admit, extend, free)",
    "KVCacheBlocks": "refused: blocks are numbers here; read Request.block_ids",
}
