"""How the rows of a step are sampled, by an older path of ``vllm.v1.sample.metadata``."""

from __future__ import annotations

from ..v1.sample.metadata import SamplingMetadata

__older_path_of__ = "vllm.v1.sample.metadata"

__all__ = ["SamplingMetadata"]

__surface__ = {
    "SamplingMetadata": "live: second argument of Sampler.forward",
}
