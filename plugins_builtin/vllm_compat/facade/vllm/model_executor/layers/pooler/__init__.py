"""From hidden states to embeddings and scores."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.poolers import (
    DispatchPooler,
    IdentityPooler,
    Pooler,
    PoolingParamsUpdate,
)

__all__ = ["DispatchPooler", "IdentityPooler", "Pooler", "PoolingParamsUpdate"]

__surface__ = {
    "DispatchPooler": "shape: a pooler for each task, which a model may call; no route pools yet",
    "IdentityPooler": "shape: hands hidden states on; no route pools yet",
    "Pooler": "shape: base of poolers, which models hold; no route pools yet",
    "PoolingParamsUpdate": "shape: what a pooler wants of a request; no route pools yet",
}
