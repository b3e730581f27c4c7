"""The engine's scheduler."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.scheduler import Scheduler

__all__ = ["Scheduler"]

__surface__ = {
    "Scheduler": "live: the engine drives it as soon as this module was imported in its process, "
    "so that what is replaced in it acts, or a subclass that --scheduler-cls names; private parts "
    "are hookserve.engine.scheduler's, not vLLM's",
}
