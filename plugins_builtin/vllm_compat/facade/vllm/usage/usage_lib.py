"""``UsageContext``: how an engine is used, in vLLM's words."""

from __future__ import annotations

import enum

__all__ = ["UsageContext", "is_usage_stats_enabled"]

__surface__ = {
    "UsageContext": "shape: may be given where engines and their arguments are made; nobody counts",
    "UsageMessage": "refused: nothing is told to anybody about how the server is used",
    "is_usage_stats_enabled": "live: never",
    "usage_message": "refused: nothing is told to anybody about how the server is used",
}


class UsageContext(enum.StrEnum):
    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


def is_usage_stats_enabled() -> bool:
    return False
