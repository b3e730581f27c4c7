"""How the rows of a step are sampled."""

from __future__ import annotations

from hookserve.engine.sampler import SamplingMetadata

__all__ = ["SamplingMetadata"]

__surface__ = {
    "SamplingMetadata": "live: second argument of Sampler.forward; lists with one entry a row "
    "where vLLM has tensors",
}
