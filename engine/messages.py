"""The messages between front and engine: tagged msgspec unions, one frame each.

How frames travel is ``channel``'s business. Every message is plain data; nothing is pickled.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from hookserve.hookspecs.report import ProcessReport
from hookserve.hookspecs.settings import Denied, PluginSettings

from .config import EngineConfig
from .sampling_params import SamplingParams

# -- front to engine ------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag=True):
    """The first message: everything that the child needs; it never reads the environment."""

    config: EngineConfig
    plugins: PluginSettings


class Proceed(msgspec.Struct, frozen=True, tag=True):
    """The parent accepts the child's manifest: load the model."""


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    """Internal and unique; a client's own id never reaches the engine as a key."""
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    """Wall clock of the front, seconds."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    priority: int = 0
    """Lower is sooner, where the scheduling policy is ``"priority"``."""
    principal: str | None = None
    """Name of who sent it, for hooks."""

    @property
    def sampling_params(self) -> SamplingParams:
        """The ecosystem's name of ``params``."""
        return self.params


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The client went away: free everything within one step."""

    request_ids: list[str]


class Finish(msgspec.Struct, frozen=True, tag=True):
    """A stop was found in text by the output processor: end without counting as an abort."""

    request_id: str
    reason: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop after the current step; the plugins' ``shutdown`` hook runs."""


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Ask for the live plugin reports of this process and of those behind it."""

    call_id: int


class CollectiveRpc(msgspec.Struct, frozen=True, tag=True):
    call_id: int
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None
    """Seconds that the workers have for it."""


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget every cached prefix; requests that run keep what they have."""

    call_id: int


ToEngine = (
    Start
    | Proceed
    | AddRequest
    | Abort
    | Finish
    | Shutdown
    | Describe
    | CollectiveRpc
    | ResetPrefixCache
)

# -- engine to front ------------------------------------------------------------------------


class ManifestSent(msgspec.Struct, frozen=True, tag=True):
    """After bootstrap: ``hookspecs.Manifest`` as builtins (``msgspec.to_builtins``)."""

    manifest: dict[str, Any]


class PluginsFailed(msgspec.Struct, frozen=True, tag=True):
    """In place of ``Ready``, and the last message: these failed or crashed in a process behind the
    engine.
    Everything is to be started again without them."""

    failures: list[Denied]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and one warm-up step has finished."""

    num_gpu_blocks: int
    block_size: int
    kv_cache_bytes: int
    kv_cache_reason: str
    num_threads: int
    threads_reason: str
    load_s: float
    warmup_s: float
    model_info: dict[str, Any] = {}
    worker_manifests: list[dict[str, Any]] = []
    """One for each worker process, as in ``ManifestSent``; none where the engine is the worker."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """One position: the log-softmax of the model's own logits, before anything changed them."""

    token_ids: list[int]
    """The token itself, then the best ones, best first; the token may be among those again."""
    logprobs: list[float]
    """Parallel to ``token_ids``."""
    rank: int
    """Of the token itself; 1 is the best."""


class FinishReason(enum.StrEnum):
    """Why a sequence ended. Each is the text that travels, so that either may be compared with
    the other."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class EngineCoreOutput(msgspec.Struct, tag=True, omit_defaults=True):
    """What one step did for one request. Schedulers of plugins may change it before it is sent."""

    request_id: str
    new_token_ids: list[int] = []
    finish_reason: str | None = None
    """The text of a ``FinishReason``."""
    stop_reason: int | None = None
    """The stop token id that ended it; ``None`` for the model's own end token."""
    error: str | None = None
    """One sentence for the client; only with ``finish_reason == "error"``."""
    is_refusal: bool = False
    """The error is what the request asked for, not what the engine met."""
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache; sent with the first token."""
    queued_s: float | None = None
    """From arrival in the engine to first schedule; sent with the first token."""
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] | None = None
    """Parallel to ``new_token_ids``, where the request asked for them."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One for each prompt token, ``None`` for the first; sent once, with the first token."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class PrefixCacheStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Look-ups since the last report: by requests, and in tokens; apart, those of requests that
    were preempted before."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    reset: bool = False
    """Whether the cache was emptied."""
    hits_by_source: dict[str, int] = {}
    """Empty: there is one cache."""


class SchedulerIterationDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step computed."""

    iteration_index: int
    num_ctx_requests: int = 0
    """With tokens of their prompt."""
    num_ctx_tokens: int = 0
    num_generation_requests: int = 0
    num_generation_tokens: int = 0
    elapsed_ms: float = 0.0
    num_encoder_inputs: int = 0
    num_encoder_output_tokens: int = 0
    is_dummy: bool = False


class SchedulerStats(msgspec.Struct, tag=True, omit_defaults=True):
    """Names are the ecosystem's; counters are deltas since the last report. What belongs to a
    feature that this engine does not have is ``None`` or empty. Schedulers of plugins may change it
    before it is sent."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    num_kv_fetch_reqs_by_stage: dict[int, int] = {}
    step_counter: int = 0
    current_wave: int = 0
    kv_cache_usage: float = 0.0
    """0 to 1, blocks held by requests over all blocks."""
    iteration_details: SchedulerIterationDetails | None = None
    """``None`` in a report without a step."""
    prefix_cache_stats: PrefixCacheStats = PrefixCacheStats()
    num_preempted_reqs: int = 0
    num_prompt_tokens: int = 0
    """Prompt tokens computed in this step for the first time; those found in the cache are not
    computed."""
    num_generation_tokens: int = 0
    connector_prefix_cache_stats: None = None
    kv_cache_eviction_events: list[Any] = []
    spec_decoding_stats: None = None
    kv_connector_stats: None = None
    ec_connector_stats: None = None
    waiting_lora_adapters: dict[str, int] = {}
    running_lora_adapters: dict[str, int] = {}
    cudagraph_stats: None = None
    perf_stats: None = None

    @property
    def prefix_cache_queries(self) -> int:
        """Tokens looked up by requests that came for the first time."""
        return self.prefix_cache_stats.queries

    @property
    def prefix_cache_hits(self) -> int:
        """Of those, the tokens that were found."""
        return self.prefix_cache_stats.hits


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """One a step: tokens, statistics, and the counter by which a stall is seen."""

    step: int
    outputs: list[EngineCoreOutput]
    scheduler_stats: SchedulerStats
    next_step_estimate_s: float
    """How long the engine expects its next step to take."""


class Described(msgspec.Struct, frozen=True, tag=True):
    call_id: int
    processes: list[ProcessReport]
    """This one, and those behind it: ``"engine"``, and ``"worker 0"`` and so on where workers are
    apart."""


class RpcResult(msgspec.Struct, frozen=True, tag=True):
    call_id: int
    result: Any = None
    error: str | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The last message of a process that cannot go on."""

    exit_code: int
    message: str
    """One sentence for the operator, without a traceback."""
    detail: str = ""
    """The traceback, for the log."""


FromEngine = ManifestSent | PluginsFailed | Ready | StepOutputs | Described | RpcResult | Failed
