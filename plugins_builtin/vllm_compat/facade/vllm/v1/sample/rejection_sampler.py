"""Names for tokens that were guessed ahead, of which there are none."""

from __future__ import annotations

from hookserve.engine.sampler import SamplerOutput

__all__ = ["SamplerOutput"]

__surface__ = {
    "SamplerOutput": "live: what the worker's sampler returns",
    "PLACEHOLDER_TOKEN_ID": "refused: nothing is guessed ahead, so nothing is rejected",
    "RejectionSampler": "refused: nothing is guessed ahead, so nothing is rejected",
}
