"""What one stage of a pipeline hands to the next."""

from __future__ import annotations

from hookserve.engine.weights import IntermediateTensors
from hookserve.plugins_builtin.vllm_compat.lazy import names_from

__all__ = ["IntermediateTensors", "SamplerOutput"]  # noqa: F822

__surface__ = {
    "IntermediateTensors": (
        "live: models take and make them; there is one stage, so none are handed on"
    ),
    "SamplerOutput": "live: what the worker's sampler returns; an older path of vllm.v1.outputs",
}

__getattr__ = names_from(__name__, {"SamplerOutput": ".v1.outputs"})
