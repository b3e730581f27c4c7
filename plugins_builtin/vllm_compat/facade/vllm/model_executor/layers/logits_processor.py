"""From hidden states to logits."""

from __future__ import annotations

from hookserve.ops.logits_processor import LogitsProcessor

__all__ = ["LogitsProcessor"]

__surface__ = {
    "LogitsProcessor": "live: models compute logits with it, through its _get_logits",
}
