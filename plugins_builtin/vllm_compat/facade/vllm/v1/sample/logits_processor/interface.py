"""What changes logits by rows of the step."""

from __future__ import annotations

from hookserve.engine.logits_processor import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
)

__all__ = [
    "AddedRequest",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "MovedRequest",
    "RemovedRequest",
]

__surface__ = {
    "AddedRequest": "live: entries of BatchUpdate.added",
    "BatchUpdate": "live: update_state is given it before each step whose rows differ",
    "LogitsProcessor": "live: the sampler of each worker builds the subclasses of the group "
    "vllm.logits_processors and of --logits-processors, and applies them",
    "MoveDirectionality": "live: third part of each entry of BatchUpdate.moved",
    "MovedRequest": "live: entries of BatchUpdate.moved",
    "RemovedRequest": "live: entries of BatchUpdate.removed",
}

RemovedRequest = int
