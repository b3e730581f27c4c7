"""Poolers of poolers, and none."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.poolers import DispatchPooler, IdentityPooler

__all__ = ["DispatchPooler", "IdentityPooler"]

__surface__ = {
    "DispatchPooler": "shape: a pooler for each task, which a model may call; no route pools yet",
    "IdentityPooler": "shape: hands hidden states on; no route pools yet",
}
