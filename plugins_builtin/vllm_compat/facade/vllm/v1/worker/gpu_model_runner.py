"""What runs the model in a worker."""

from __future__ import annotations

from hookserve.engine.model_runner import ModelRunner as GPUModelRunner

__all__ = ["GPUModelRunner"]

__surface__ = {
    "GPUModelRunner": "live: runs every step of the built-in worker; load_model, _update_states, "
    "_prepare_inputs and execute_model may be overridden or patched. Its arrays are its own, not "
    "those of vLLM's class",
}
