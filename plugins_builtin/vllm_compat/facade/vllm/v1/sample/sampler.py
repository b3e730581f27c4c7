"""Logits to tokens."""

from __future__ import annotations

from hookserve.engine.sampler import Sampler, SamplerOutput

__all__ = ["Sampler", "SamplerOutput"]

__surface__ = {
    "Sampler": "live: the worker samples with it, so a forward that is replaced acts; one that a "
    "model holds as an attribute is not called",
    "SamplerOutput": "live: what Sampler.forward returns",
}
