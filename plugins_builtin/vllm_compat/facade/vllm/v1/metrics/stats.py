"""What loggers are given of each step."""

from __future__ import annotations

from hookserve.engine.messages import (
    PrefixCacheStats,
    SchedulerIterationDetails,
    SchedulerStats,
)
from hookserve.engine.stats import (
    FinishedRequestStats,
    IterationStats,
    MultiModalCacheStats,
    PromptTokenStats,
    RequestStateStats,
)

__all__ = [
    "FinishedRequestStats",
    "IterationStats",
    "MultiModalCacheStats",
    "PrefixCacheStats",
    "PromptTokenStats",
    "RequestStateStats",
    "SchedulerIterationDetails",
    "SchedulerStats",
]

__surface__ = {
    "FinishedRequestStats": "live: IterationStats.finished_requests has one for each sequence "
    "that ended",
    "IterationStats": "live: second argument of StatLoggerBase.record",
    "MultiModalCacheStats": "shape: third argument of StatLoggerBase.record, which is always None",
    "PrefixCacheStats": "live: SchedulerStats.prefix_cache_stats; counts since the last report",
    "PromptTokenStats": "live: IterationStats.prompt_token_stats",
    "RequestStateStats": "live: RequestOutput.metrics; times are of the front's clock",
    "SchedulerIterationDetails": "live: SchedulerStats.iteration_details of each step",
    "SchedulerStats": "live: first argument of StatLoggerBase.record; fields of features that "
    "the engine lacks are None or empty",
    "BaseCacheStats": "refused: caches' statistics have no common base; use PrefixCacheStats",
    "CachingMetrics": "refused: rates over a window are the logger's own to keep",
    "KVCacheEvictionEvent": "refused: evictions are not recorded; the list of them is empty",
    "LoRARequestStates": "refused: there are no adapters; the fields for them are empty",
    "PrefillStats": "refused: a prompt's tokens are told in PromptTokenStats and in "
    "FinishedRequestStats",
    "RequestSpecDecodeMetrics": "refused: there is no speculative decoding",
}
