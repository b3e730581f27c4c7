"""An older home of how the rows of a step are sampled (``vllm.v1.sample.metadata``)."""

from __future__ import annotations

from ..v1.sample.metadata import SamplingMetadata

__all__ = ["SamplingMetadata"]

__surface__ = {
    "SamplingMetadata": "live: as in vllm.v1.sample.metadata; models are not given it",
    "SamplingTensors": "refused: rows are sampled from numbers; read SamplingMetadata",
}
