"""What changes logits and keeps what it knows of a request in the request's slot."""

from __future__ import annotations

from hookserve.engine.slot_logits_processor import (
    LogitsContext,
    LogitsProcRequestState,
)
from hookserve.engine.slot_logits_processor import SlotLogitsProcessor as LogitsProcessor

__all__ = ["LogitsContext", "LogitsProcRequestState", "LogitsProcessor"]

__surface__ = {
    "LogitsContext": "live: second argument of LogitsProcessor.apply; a request has one row",
    "LogitsProcRequestState": "live: second argument of LogitsProcessor's constructor",
    "LogitsProcessor": "live: the sampler of each worker builds its subclasses and applies them, "
    "beside those of vllm.v1.sample.logits_processor",
}
