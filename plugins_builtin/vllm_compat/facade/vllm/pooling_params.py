"""``PoolingParams``: what a pooling request asks for."""

from __future__ import annotations

from hookserve.engine.pooling_params import PoolingParams

__all__ = ["PoolingParams"]

__surface__ = {
    "PoolingParams": "shape: holds what a pooling request asks, for IO processors and poolers; no "
    "pooling model is served",
}
