"""An older home of what makes tokens of logits (``vllm.v1.sample.sampler``)."""

from __future__ import annotations

from ...v1.sample.sampler import Sampler, SamplerOutput

__all__ = ["Sampler", "SamplerOutput", "get_sampler"]

__surface__ = {
    "Sampler": "live: as in vllm.v1.sample.sampler; one that a model holds is not called",
    "SamplerOutput": "live: as in vllm.v1.outputs",
    "get_sampler": "shape: a sampler for a model that holds one; the worker samples with its own",
}


def get_sampler() -> Sampler:
    """A new one."""
    return Sampler()
