"""The requests of a step, for a pooler."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.poolers import PoolingMetadata

__all__ = ["PoolingMetadata"]

__surface__ = {
    "PoolingMetadata": (
        "shape: the requests of a step for a pooler that a model calls itself; no route pools yet"
    ),
}
