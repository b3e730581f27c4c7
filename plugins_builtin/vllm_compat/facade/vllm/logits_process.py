"""An older home of a request's function of its logits."""

from __future__ import annotations

from hookserve.engine.logits_processor import RequestProcessor as LogitsProcessor

__older_path_of__ = "vllm.v1.sample.logits_processor"

__all__ = ["LogitsProcessor"]

__surface__ = {
    "LogitsProcessor": "live: what AdapterLogitsProcessor.new_req_logits_processor returns; a "
    "request itself carries none",
    "NoBadWordsLogitsProcessor": "refused: the sampler bans words itself; set bad_words",
    "get_bad_words_logits_processors": "refused: the sampler bans words itself; set bad_words",
}
