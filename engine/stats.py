"""Statistics of the front: what stat loggers receive with each step of the engine.

Names are the ecosystem's. ``FrontStats`` keeps one small record for each live request and turns
the engine's ``StepOutputs`` into ``IterationStats``; formatting and exporting them is the
loggers' business. Durations are seconds; nothing here imports torch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .messages import EngineCoreOutput, FinishReason, StepOutputs

_REASONS = {reason.value: reason for reason in FinishReason}


@dataclass
class PromptTokenStats:
    """Prompt tokens by where their keys and values came from; counts of one iteration."""

    ALL_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")

    computed: int = 0
    local_cache_hit: int = 0
    external_kv_transfer: int = 0
    """None: nothing is transferred."""

    @property
    def cached_tokens(self) -> int:
        return self.local_cache_hit + self.external_kv_transfer

    @property
    def total(self) -> int:
        return self.computed + self.cached_tokens

    def get_by_source(self, source: str) -> int:
        """Raises ``ValueError`` for a source that is not in ``ALL_SOURCES``."""
        if source not in self.ALL_SOURCES:
            raise ValueError(f"source {source!r}: expected one of {', '.join(self.ALL_SOURCES)}")
        by_source = (self.computed, self.local_cache_hit, self.external_kv_transfer)
        return by_source[self.ALL_SOURCES.index(source)]


@dataclass
class MultiModalCacheStats:
    """Look-ups in a cache of processed images and sounds; no logger gets any: this engine takes
    text alone."""

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0


@dataclass
class FinishedRequestStats:
    """One sequence that ended, however it ended."""

    finish_reason: FinishReason | str
    """A text alone is a reason of a plugin's own."""
    request_id: str
    e2e_latency: float = 0.0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    max_tokens_param: int | None = None
    queued_time: float = 0.0
    """From arrival in the engine to the first schedule."""
    prefill_time: float = 0.0
    """From the first schedule to the first token."""
    inference_time: float = 0.0
    """From the first schedule to the last token."""
    decode_time: float = 0.0
    """From the first token to the last."""
    mean_time_per_output_token: float = 0.0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    is_corrupted: bool = False
    """Never: a request whose logits are not numbers ends with an error."""


@dataclass
class IterationStats:
    """What one step of the engine did for the requests of this front."""

    iteration_timestamp: float = field(default_factory=time.time)
    num_generation_tokens: int = 0
    prompt_token_stats: PromptTokenStats = field(default_factory=PromptTokenStats)
    num_preempted_reqs: int = 0
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)
    max_num_generation_tokens_iter: list[int] = field(default_factory=list)
    """For each request whose last sequence ended: the tokens of its longest one."""
    n_params_iter: list[int] = field(default_factory=list)
    """Parallel to it: how many sequences were asked for."""
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    num_corrupted_reqs: int = 0
    num_watermarked_reqs: int = 0
    num_watermark_skipped_reqs: int = 0
    num_not_watermarked_reqs: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_token_stats.total


@dataclass(slots=True)
class Siblings:
    """The sequences of one request, which is counted once all of them have ended."""

    n: int
    """What the caller asked for."""
    num_open: int
    max_num_generation_tokens: int = 0


@dataclass(slots=True)
class RequestStateStats:
    """What is remembered of a live request. ``*_ts`` are ``time.monotonic()`` of the front, 0
    before they are known."""

    num_prompt_tokens: int
    max_tokens: int | None
    queued_ts: float
    arrival_time: float = 0.0
    """Wall clock, seconds since the epoch."""
    num_generation_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    is_corrupted: bool = False
    is_watermarked: bool = False
    is_watermark_skipped: bool = False
    siblings: Siblings | None = None

    def note_tokens(self, count: int, now: float) -> None:
        """Tokens have come."""
        if self.num_generation_tokens == 0:
            self.first_token_ts = now
            self.first_token_latency = now - self.queued_ts
        self.last_token_ts = now
        self.num_generation_tokens += count

    def finished(
        self, request_id: str, reason: str, now: float, num_generation_tokens: int | None
    ) -> FinishedRequestStats:
        generated = num_generation_tokens
        if generated is None:
            generated = self.num_generation_tokens
        # What never happened takes no time.
        scheduled_ts = self.scheduled_ts or self.queued_ts
        first_ts = self.first_token_ts or scheduled_ts
        last_ts = self.last_token_ts or first_ts
        decode_time = last_ts - first_ts
        return FinishedRequestStats(
            finish_reason=_REASONS.get(reason, reason),
            request_id=request_id,
            e2e_latency=now - self.queued_ts,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generation_tokens=generated,
            max_tokens_param=self.max_tokens,
            queued_time=scheduled_ts - self.queued_ts,
            prefill_time=max(0.0, first_ts - scheduled_ts),
            inference_time=max(0.0, last_ts - scheduled_ts),
            decode_time=decode_time,
            mean_time_per_output_token=decode_time / (generated - 1) if generated > 1 else 0.0,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
        )


class FrontStats:
    """Turns what the engine sends into ``IterationStats``; one object for each engine.

    Every request that was added leaves by one of: the engine's own finish, seen by ``observe``;
    ``finish`` for an end that the front decided (a stop in text, an abort). What the engine still
    sends for a request that left is counted nowhere.
    """

    def __init__(self) -> None:
        self._requests: dict[str, RequestStateStats] = {}
        self._finished: list[FinishedRequestStats] = []
        self._ended: list[Siblings] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add_request(
        self,
        request_id: str,
        *,
        num_prompt_tokens: int,
        max_tokens: int | None,
        siblings: Siblings | None = None,
        now: float | None = None,
    ) -> RequestStateStats:
        """A sequence was submitted. ``now`` is ``time.monotonic()``. Returns what will be known of
        it, kept up to date until its end.

        Args:
            siblings: shared by the sequences of one request, if there are more than one.
        """
        queued = time.monotonic() if now is None else now
        state = RequestStateStats(
            num_prompt_tokens, max_tokens, queued, arrival_time=time.time(), siblings=siblings
        )
        self._requests[request_id] = state
        return state

    def get(self, request_id: str) -> RequestStateStats | None:
        return self._requests.get(request_id)

    def observe(self, step: StepOutputs, now: float | None = None) -> IterationStats:
        """The statistics of one step, with the requests that ended since the last one."""
        now = time.monotonic() if now is None else now
        stats = IterationStats(num_preempted_reqs=step.scheduler_stats.num_preempted_reqs)
        for output in step.outputs:
            state = self._requests.get(output.request_id)
            if state is None:
                continue
            if output.new_token_ids:
                self._count_tokens(state, output, stats, now)
            state.num_preemptions = max(state.num_preemptions, output.num_preemptions)
            if output.finish_reason is not None:
                self.finish(output.request_id, output.finish_reason, now=now)
        self.add_finished(stats)
        return stats

    @staticmethod
    def _count_tokens(
        state: RequestStateStats, output: EngineCoreOutput, stats: IterationStats, now: float
    ) -> None:
        count = len(output.new_token_ids)
        stats.num_generation_tokens += count
        if state.num_generation_tokens == 0:
            state.num_cached_tokens = output.num_cached_tokens
            state.scheduled_ts = state.queued_ts + (output.queued_s or 0.0)
            stats.time_to_first_tokens_iter.append(now - state.queued_ts)
            prompt = stats.prompt_token_stats
            prompt.local_cache_hit += output.num_cached_tokens
            prompt.computed += state.num_prompt_tokens - output.num_cached_tokens
        else:
            stats.inter_token_latencies_iter.append(now - state.last_token_ts)
        state.note_tokens(count, now)

    def finish(
        self,
        request_id: str,
        reason: str,
        *,
        num_generation_tokens: int | None = None,
        now: float | None = None,
    ) -> FinishedRequestStats | None:
        """A request ended; ``None`` if it had left already.

        Args:
            num_generation_tokens: tokens that count, where the front knows better than the
                engine (a stop in text); ``None``: all that the engine sent.
        """
        state = self._requests.pop(request_id, None)
        if state is None:
            return None
        now = time.monotonic() if now is None else now
        finished = state.finished(request_id, reason, now, num_generation_tokens)
        self._finished.append(finished)
        siblings = state.siblings if state.siblings is not None else Siblings(1, 1)
        siblings.num_open -= 1
        siblings.max_num_generation_tokens = max(
            siblings.max_num_generation_tokens, finished.num_generation_tokens
        )
        if siblings.num_open == 0:
            self._ended.append(siblings)
        return finished

    def add_finished(self, stats: IterationStats | None) -> IterationStats | None:
        """``stats``, or new ones, with the requests that ended and were not reported yet; ``None``
        if there is neither."""
        if not self._finished:
            return stats
        stats = stats if stats is not None else IterationStats()
        stats.finished_requests += self._finished
        for ended in self._ended:
            stats.max_num_generation_tokens_iter.append(ended.max_num_generation_tokens)
            stats.n_params_iter.append(ended.n)
        self._finished.clear()
        self._ended.clear()
        return stats
