"""What travels between front and engine."""

from __future__ import annotations

from hookserve.engine.messages import AddRequest as EngineCoreRequest
from hookserve.engine.messages import EngineCoreOutput, FinishReason
from hookserve.plugins_builtin.vllm_compat.scheduler import EngineCoreOutputs

__all__ = ["EngineCoreOutput", "EngineCoreOutputs", "EngineCoreRequest", "FinishReason"]

__surface__ = {
    "EngineCoreOutput": "live: what a step did for one request",
    "EngineCoreOutputs": "live: what update_from_output gives for the one front, under 0",
    "EngineCoreRequest": "live: what the front sends, and EngineCore.add_request takes",
    "FinishReason": "live: FinishedRequestStats.finish_reason; each is a text too, and the text "
    "alone stands in EngineCoreOutput",
    "EngineCoreEvent": "refused: times are in EngineCoreOutput.queued_s and RequestStateStats",
    "EngineCoreEventType": "refused: times are in EngineCoreOutput.queued_s and RequestStateStats",
    "EngineCoreRequestType": "refused: each message has a type of its own "
    "(hookserve.engine.messages)",
    "UtilityOutput": "refused: workers are called by collective_rpc",
}
