"""Managers of caches by what layers keep: there is one."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "KVCacheSpecRegistry": (
        "refused: blocks belong to all layers alike, and one manager hands them out"
    ),
    "register_kv_cache_spec": (
        "refused: blocks belong to all layers alike, and one manager hands them out"
    ),
}
