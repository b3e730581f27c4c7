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


_OF_OTHERS = frozenset(
    [
        "aux_output_connector_output",
        "cudagraph_stats",
        "ec_connector_output",
        "kv_connector_output",
        "num_nans_in_logits",
        "prompt_token_id_logprobs_dict",
        "sampling_masks",
    ]
)
"""What the ecosystem's runners answer of features that this engine lacks."""


@dataclass(slots=True, init=False)
class ModelRunnerOutput:
    """Made by name also as the ecosystem's runners make it.

    Args:
        req_id_to_index: must be the places in ``req_ids``.
        prompt_logprobs_dict: the ecosystem's name of ``prompt_logprobs``; of requests that did not
            ask it may have ``None``.
        pooler_output, others: must be empty.

    Raises:
        ValueError: one of them says something else.
    """

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

    def __init__(
        self,
        req_ids: list[str] | None = None,
        sampled_token_ids: list[list[int]] | None = None,
        logprobs: dict[str, list[TokenLogprobs]] | None = None,
        prompt_logprobs: dict[str, list[TokenLogprobs | None]] | None = None,
        errors: dict[str, str] | None = None,
        refused: set[str] | None = None,
        **given: Any,
    ) -> None:
        self.req_ids = [] if req_ids is None else req_ids
        self.sampled_token_ids = [] if sampled_token_ids is None else sampled_token_ids
        self.logprobs = {} if logprobs is None else logprobs
        self.prompt_logprobs = {} if prompt_logprobs is None else prompt_logprobs
        self.errors = {} if errors is None else errors
        self.refused = set() if refused is None else refused
        if given:
            self._take(given)

    def _take(self, given: dict[str, Any]) -> None:
        """What only the ecosystem's constructor has."""
        told = given.pop("prompt_logprobs_dict", None) or {}
        self.prompt_logprobs |= {name: each for name, each in told.items() if each is not None}
        places = given.pop("req_id_to_index", None)
        if places is not None and places != self.req_id_to_index:
            raise ValueError(
                f"req_id_to_index has other places than req_ids: {places!r:.120} and "
                f"{self.req_ids!r:.120}"
            )
        if any(each is not None for each in given.pop("pooler_output", None) or ()):
            raise ValueError("pooler_output is given; models generate here, and no worker pools")
        for name, value in given.items():
            if name not in _OF_OTHERS:
                raise TypeError(f"unexpected keyword argument {name!r}")
            if value is not None and value != {}:
                raise ValueError(f"{name} is given; this engine has no use for it, expected None")

    @property
    def req_id_to_index(self) -> dict[str, int]:
        """The place of each request in ``req_ids``."""
        return {req_id: index for index, req_id in enumerate(self.req_ids)}

    @property
    def prompt_logprobs_dict(self) -> dict[str, list[TokenLogprobs | None]]:
        """The ecosystem's name of ``prompt_logprobs``."""
        return self.prompt_logprobs
