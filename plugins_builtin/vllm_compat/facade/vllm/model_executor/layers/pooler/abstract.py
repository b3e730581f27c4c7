"""What a pooler is."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.poolers import Pooler

__all__ = ["Pooler"]

__surface__ = {
    "Pooler": "shape: base of poolers, which models hold; no route pools yet",
}
