"""Logits to tokens, by an older path of ``vllm.v1.sample.sampler``."""

from __future__ import annotations

from ...v1.sample.sampler import Sampler, SamplerOutput

__older_path_of__ = "vllm.v1.sample.sampler"

__all__ = ["Sampler", "SamplerOutput"]

__surface__ = {
    "Sampler": (
        "live: the worker samples with it; one that a model holds as an attribute is not called"
    ),
    "SamplerOutput": "live: what Sampler.forward returns",
}
