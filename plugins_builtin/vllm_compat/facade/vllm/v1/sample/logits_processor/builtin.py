"""What a processor uses to keep its rows."""

from __future__ import annotations

from hookserve.engine.logits_processor import process_dict_updates

__all__ = ["process_dict_updates"]

__surface__ = {
    "process_dict_updates": "live: AdapterLogitsProcessor keeps its functions by it",
    "LogitBiasLogitsProcessor": "refused: the sampler biases logits itself; set logit_bias",
    "MinPLogitsProcessor": "refused: the sampler cuts by min_p itself; set min_p",
    "MinTokensLogitsProcessor": "refused: the sampler bans ends itself; set min_tokens",
}
