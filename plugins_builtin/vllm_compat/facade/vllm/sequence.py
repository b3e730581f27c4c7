"""What one stage of a pipeline hands to the next."""

from __future__ import annotations

from hookserve.engine.weights import IntermediateTensors

__all__ = ["IntermediateTensors"]

__surface__ = {
    "IntermediateTensors": (
        "live: models take and make them; there is one stage, so none are handed on"
    ),
    "SamplerOutput": "refused: tokens are drawn by the worker, which hands them on in its own form",
}
