"""What runs the model in a worker, where vLLM's newer runner is."""

from __future__ import annotations

from hookserve.engine.model_runner import ModelRunner as GPUModelRunner

__all__ = ["GPUModelRunner"]

__surface__ = {
    "GPUModelRunner": "live: the one runner there is, that of vllm.v1.worker.gpu_model_runner",
}
