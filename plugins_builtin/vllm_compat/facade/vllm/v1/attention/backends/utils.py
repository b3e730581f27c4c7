"""Helpers of backends that are not served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "get_kv_cache_layout": "refused: there is one layout of the KV cache, blocks first",
    "split_decodes_and_prefills": "refused: there is one layout of the KV cache, blocks first",
}
