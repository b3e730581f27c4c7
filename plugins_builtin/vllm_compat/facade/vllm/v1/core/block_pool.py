"""Free and held blocks of the KV cache."""

from __future__ import annotations

from hookserve.engine.kv_cache import BlockPool

__all__ = ["BlockPool"]

__surface__ = {
    "BlockPool": "live: KVCacheManager.block_pool; num_gpu_blocks, get_num_free_blocks and "
    "get_usage are as in vLLM, the rest is the engine's own (find, take, share, release)",
}
