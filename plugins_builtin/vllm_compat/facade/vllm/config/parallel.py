"""What is said of ranks and their processes."""

from __future__ import annotations

from hookserve.engine.vllm_config import ParallelConfig

__all__ = ["ParallelConfig"]

__surface__ = {
    "ParallelConfig": "live: layers read their ranks from it",
}
