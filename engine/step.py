"""The data of one step: what the scheduler hands to the workers, and what comes back.

Plain data with the ecosystem's names, which crosses to worker processes as it is. Who fills
what: the scheduler all of ``SchedulerOutput``, the model runner all of ``ModelRunnerOutput``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .messages import TokenLogprobs
from .sampling_params import SamplingParams


@dataclass(slots=True)
class NewRequestData:
    """A request that the workers see for the first time."""

    req_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    block_ids: list[int]
    num_computed_tokens: int
    """Tokens whose keys and values are in the cache before this step."""

    @property
    def pooling_params(self) -> None:
        """Nobody's: all requests generate."""
        return None

    @property
    def lora_request(self) -> None:
        """Nobody's: there are no adapters."""
        return None

    @property
    def mm_features(self) -> tuple[()]:
        """Nobody's: there is text alone."""
        return ()


@dataclass(slots=True)
class CachedRequestData:
    """Requests that the workers know, as parallel lists."""

    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
    """Blocks added in this step; for a resumed request all of its blocks."""
    all_token_ids: dict[str, Sequence[int]] = field(default_factory=dict)
    """Resumed requests only: prompt and output so far."""

    @property
    def resumed_req_ids(self) -> set[str]:
        return set(self.all_token_ids)

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)

    @classmethod
    def make_empty(cls) -> CachedRequestData:
        return cls()


@dataclass(slots=True)
class GrammarOutput:
    """What may be sampled, for requests whose text must have a form."""

    structured_output_request_ids: list[str]
    """Those that are sampled in this step."""
    grammar_bitmask: Any
    """numpy int32 [requests, ceil(vocabulary / 32)], parallel to them: token ``i`` is bit
    ``i % 32``, counted from the lowest, of element ``i // 32``."""


@dataclass(slots=True)
class SchedulerOutput:
    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequestData = field(default_factory=CachedRequestData)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    """Tokens to compute in this step, decoding requests first."""
    total_num_scheduled_tokens: int = 0
    finished_req_ids: set[str] = field(default_factory=set)
    """Ended since the last step, however they ended: forget them."""
    preempted_req_ids: set[str] = field(default_factory=set)
    new_block_ids_to_zero: list[int] = field(default_factory=list)
    """Blocks to clear before the step."""
    grammar_output: GrammarOutput | None = None
    """Filled by the engine behind the scheduler; ``None``: nobody's."""

    @classmethod
    def make_empty(cls) -> SchedulerOutput:
        """A step of nobody."""
        return cls()

    @property
    def scheduled_spec_decode_tokens(self) -> dict[str, list[int]]:
        """Nobody's: nothing is guessed ahead."""
        return {}

    @property
    def scheduled_encoder_inputs(self) -> dict[str, list[int]]:
        """Nobody's: there is text alone."""
        return {}

    @property
    def free_encoder_mm_hashes(self) -> tuple[()]:
        """Nobody's: there is text alone."""
        return ()

    @property
    def kv_connector_metadata(self) -> None:
        """There is no connector."""
        return None

    @property
    def has_structured_output_requests(self) -> bool:
        """Whether a grammar rules a token of this step; known once the engine has filled it in."""
        return self.grammar_output is not None


@dataclass(slots=True)
class ModelRunnerOutput:
    req_ids: list[str] = field(default_factory=list)
    sampled_token_ids: list[list[int]] = field(default_factory=list)
    """Parallel to ``req_ids``; empty while a prompt is not computed to its end."""
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """By request that asked for them, parallel to its sampled tokens."""
    prompt_logprobs: dict[str, list[TokenLogprobs | None]] = field(default_factory=dict)
    """By request that asked for them, in the step that completes its prompt."""
    errors: dict[str, str] = field(default_factory=dict)
    """Requests that failed alone, with one sentence for the client."""
    refused: set[str] = field(default_factory=set)
    """Those of them that asked for what cannot be."""

    @property
    def req_id_to_index(self) -> dict[str, int]:
        """The place of each request in ``req_ids``."""
        return {req_id: index for index, req_id in enumerate(self.req_ids)}

    @property
    def prompt_logprobs_dict(self) -> dict[str, list[TokenLogprobs | None]]:
        """The ecosystem's name of ``prompt_logprobs``."""
        return self.prompt_logprobs
