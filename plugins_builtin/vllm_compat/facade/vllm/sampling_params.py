"""How one request is sampled."""

from __future__ import annotations

from hookserve.engine.sampling_params import SamplingParams, SamplingType
from hookserve.engine.sampling_rules import RequestOutputKind
from hookserve.engine.structured_outputs import StructuredOutputsParams

__all__ = ["RequestOutputKind", "SamplingParams", "SamplingType", "StructuredOutputsParams"]

__surface__ = {
    "BeamSearchParams": "refused: there is no beam search; use SamplingParams(n=..., best_of=...)",
    "RequestOutputKind": "live: says what each output of AsyncLLM.generate holds",
    "SamplingParams": "live: of each request, in front, engine and worker; what is set is checked, "
    "and what a list is given in its place when they are used",
    "SamplingType": "live: what SamplingParams.sampling_type answers",
    "StructuredOutputsParams": "live: the form that a request's text must have",
}
