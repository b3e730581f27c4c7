"""A base for parsers of reasoning with two markers."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.thinking_parser import BaseThinkingReasoningParser

__all__ = ["BaseThinkingReasoningParser"]

__surface__ = {
    "BaseThinkingReasoningParser": "live: a parser that is complete with start_token and "
    "end_token, its markers, each of which must be one token",
}
