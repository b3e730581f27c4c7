"""The data of a step."""

from __future__ import annotations

from hookserve.engine.step import (
    CachedRequestData,
    GrammarOutput,
    NewRequestData,
    SchedulerOutput,
)

__all__ = ["CachedRequestData", "GrammarOutput", "NewRequestData", "SchedulerOutput"]

__surface__ = {
    "CachedRequestData": "live: SchedulerOutput.scheduled_cached_reqs; new_block_ids and "
    "all_token_ids are by request id",
    "GrammarOutput": "live: SchedulerOutput.grammar_output, filled by the engine behind the "
    "scheduler",
    "NewRequestData": "live: SchedulerOutput.scheduled_new_reqs; block_ids is one list: there is "
    "one group",
    "SchedulerOutput": "live: what schedule returns and workers compute; fields of features that "
    "the engine lacks are empty, and cannot be set",
}
