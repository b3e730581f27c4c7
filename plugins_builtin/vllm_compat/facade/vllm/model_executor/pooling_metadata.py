"""The requests of a step for a pooler, by an older path of ``vllm.v1.pool.metadata``."""

from __future__ import annotations

from ..v1.pool.metadata import PoolingMetadata

__older_path_of__ = "vllm.v1.pool.metadata"

__all__ = ["PoolingMetadata"]

__surface__ = {
    "PoolingMetadata": (
        "shape: the requests of a step for a pooler that a model calls itself; no route pools yet"
    ),
}
