"""Free and held blocks of the KV cache."""

from __future__ import annotations

from hookserve.engine.kv_cache import BlockPool

__all__ = ["BlockPool"]

__surface__ = {
    "BlockPool": "live: KVCacheManager.pool; its methods are the engine's own (find, take, share, "
    "release), not vLLM's",
}
