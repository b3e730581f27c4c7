"""What changes logits by rows of the step, or by one function for each request."""

from __future__ import annotations

from hookserve.engine.logits_processor import AdapterLogitsProcessor
from hookserve.engine.logits_processor import RequestProcessor as RequestLogitsProcessor

from .builtin import process_dict_updates
from .interface import BatchUpdate, LogitsProcessor, MoveDirectionality
from .state import BatchUpdateBuilder, LogitsProcessors

__all__ = [
    "LOGITSPROCS_GROUP",
    "AdapterLogitsProcessor",
    "BatchUpdate",
    "BatchUpdateBuilder",
    "LogitsProcessor",
    "LogitsProcessors",
    "MoveDirectionality",
    "RequestLogitsProcessor",
    "process_dict_updates",
]

__surface__ = {
    "LOGITSPROCS_GROUP": "live: the group of entry points whose classes are taken",
    "AdapterLogitsProcessor": "live: the sampler of each worker builds its subclasses, which give "
    "each request a function",
    "BatchUpdate": "live: update_state is given it before each step whose rows differ",
    "BatchUpdateBuilder": "shape: puts a BatchUpdate together, for a processor's own tests; the "
    "worker makes those of its steps otherwise",
    "LogitsProcessor": "live: the sampler of each worker builds its subclasses and applies them",
    "LogitsProcessors": "shape: sorts processors by is_argmax_invariant; the sampler keeps its own",
    "MoveDirectionality": "live: third part of each entry of BatchUpdate.moved",
    "RequestLogitsProcessor": "live: what new_req_logits_processor returns",
    "process_dict_updates": "live: AdapterLogitsProcessor keeps its functions by it",
    "LogitBiasLogitsProcessor": "refused: the sampler biases logits itself; set logit_bias",
    "MinPLogitsProcessor": "refused: the sampler cuts by min_p itself; set min_p",
    "MinTokensLogitsProcessor": "refused: the sampler bans ends itself; set min_tokens",
    "build_logitsprocs": "refused: workers build processors themselves; name them by "
    "--logits-processors or by an entry point",
    "validate_logits_processors_parameters": "refused: the front asks validate_params itself",
}

LOGITSPROCS_GROUP = "vllm.logits_processors"
