"""What runs the model in a worker of a CPU."""

from __future__ import annotations

from hookserve.engine.model_runner import ModelRunner as CPUModelRunner

__all__ = ["CPUModelRunner"]

__surface__ = {
    "CPUModelRunner": "live: the same class as GPUModelRunner",
}
