"""What a pooler wants of a request."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.poolers import PoolingParamsUpdate

__all__ = ["PoolingParamsUpdate"]

__surface__ = {
    "PoolingParamsUpdate": "shape: what a pooler wants of a request; no route pools yet",
}
