"""How the rows of a step are sampled, by an older path of ``vllm.v1.sample.metadata``."""

from __future__ import annotations

from ..v1.sample.metadata import SamplingMetadata

__all__ = ["SamplingMetadata"]

__surface__ = {
    "SamplingMetadata": "live: second argument of Sampler.forward",
}
