"""``Request``: one sequence in the engine, with all arithmetic over its tokens.

Schedulers of plugins read it under the ecosystem's names too.

Schedulers ask it what is left to compute; nobody else adds up lengths. Which blocks it may have is
``kv_cache``'s to decide, when it runs is ``scheduler``'s.
"""

from __future__ import annotations

import enum
import hashlib
from array import array
from collections.abc import Sequence

from .messages import AddRequest, FinishReason
from .sampling_params import SamplingParams


class RequestStatus(enum.IntEnum):
    """Where a request is. The three that say what it waits for are the ecosystem's, and no request
    has them here: one whose grammar is not ready yet is kept back before the scheduler."""

    WAITING = enum.auto()
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    WAITING_FOR_STREAMING_REQ = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    """Waiting again; its blocks were taken and its tokens will be computed anew."""
    FINISHED_STOPPED = enum.auto()
    """Also by a reason of a plugin's own."""
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_ERROR = enum.auto()

    @staticmethod
    def is_finished(status: RequestStatus) -> bool:
        return status > RequestStatus.PREEMPTED

    @staticmethod
    def get_finished_reason(status: RequestStatus) -> FinishReason | None:
        """``None``: it has not finished."""
        return _REASONS.get(status)

    @staticmethod
    def finished_by(reason: str) -> RequestStatus:
        """The status of a request that ended for the reason."""
        return _ENDS.get(reason, RequestStatus.FINISHED_STOPPED)


_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}
_ENDS: dict[str, RequestStatus] = {reason: status for status, reason in _REASONS.items()}


class Request:
    """Prompt and output in one growing array; counters say how far the computation is.

    ``num_computed_tokens`` counts tokens whose keys and values are in the cache, or will be when
    the step that is under way ends. Plugins may keep attributes of their own on it.
    """

    __slots__ = (
        "__dict__",
        "arrival_time",
        "arrival_ts",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "eos_ids",
        "finish_reason",
        "is_resumed",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_prompt_tokens_done",
        "num_registered_blocks",
        "params",
        "prefix_root",
        "principal",
        "priority",
        "queued_s",
        "request_id",
        "status",
        "stop_ids",
        "token_ids",
    )

    def __init__(self, message: AddRequest, arrival_ts: float) -> None:
        """
        Args:
            message: as it came from the front.
            arrival_ts: ``time.monotonic()`` at which it reached the engine.

        Raises:
            OverflowError: a token id that is no 32-bit number.
        """
        self.request_id = message.request_id
        self.params = message.params
        self.arrival_ts = arrival_ts
        self.arrival_time = message.arrival_time
        self.principal = message.principal
        self.priority = message.priority
        self.token_ids = array("i", message.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache at the first admission."""
        self.num_prompt_tokens_done = 0
        """Prompt tokens that were computed or found once, whatever a preemption took since."""
        self.num_preemptions = 0
        self.is_resumed = False
        """Admitted again after a preemption, and the workers were not told yet."""
        self.queued_s: float | None = None
        self.status = RequestStatus.WAITING
        self.finish_reason: str | None = None
        self.block_ids: list[int] = []
        self.num_registered_blocks = 0
        """How many of ``block_ids``, from the first on, the prefix cache knows."""
        self.block_hashes: list[bytes] = []
        self.cache_salt = message.cache_salt
        self.prefix_root = _start_chain(message.cache_salt)
        self.stop_ids = frozenset(message.params.stop_token_ids)
        ignored = message.params.ignore_eos
        self.eos_ids = frozenset(() if ignored else message.params.eos_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that are known but not computed; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether the next step computes just its newest token."""
        return self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0

    @property
    def must_compute_prompt(self) -> bool:
        """Whether every prompt token has to be computed for this request, cached or not: its
        log-probabilities come from there, and go out with the first token."""
        return self.params.prompt_logprobs is not None and self.num_output_tokens == 0

    def is_finished(self) -> bool:
        return RequestStatus.is_finished(self.status)

    def get_finished_reason(self) -> FinishReason | None:
        """``None``: it has not finished."""
        return RequestStatus.get_finished_reason(self.status)

    def __lt__(self, other: Request) -> bool:
        """Whether it is served sooner: by priority, then by arrival."""
        mine = self.priority, self.arrival_time, self.request_id
        return mine < (other.priority, other.arrival_time, other.request_id)

    # -- the ecosystem's names ------------------------------------------------------------------

    @property
    def sampling_params(self) -> SamplingParams:
        return self.params

    @property
    def max_tokens(self) -> int | None:
        return self.params.max_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """A copy."""
        return self.token_ids[: self.num_prompt_tokens].tolist()

    @property
    def output_token_ids(self) -> list[int]:
        """A copy."""
        return self.token_ids[self.num_prompt_tokens :].tolist()

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output, as they grow; only to be read."""
        return self.token_ids

    @property
    def num_tokens_with_spec(self) -> int:
        """Nothing is guessed ahead, so it is ``num_tokens``."""
        return self.num_tokens

    @property
    def use_structured_output(self) -> bool:
        return self.params.structured_outputs is not None

    @property
    def client_index(self) -> int:
        """Of the front that sent it: there is one."""
        return 0

    def advance_prompt(self, start: int, count: int) -> int:
        """How many of the ``count`` tokens from position ``start`` on belong to the prompt and are
        computed for the first time."""
        end = min(start + count, self.num_prompt_tokens)
        first = max(start, self.num_prompt_tokens_done)
        self.num_prompt_tokens_done = max(end, self.num_prompt_tokens_done)
        return max(0, end - first)

    def append_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)

    def hash_full_blocks(self, block_size: int) -> list[bytes]:
        """One chained digest for each full block of known tokens; only new blocks are hashed.

        A digest covers the salt and every token before and in the block, so equal digests mean
        equal keys and values. What is hashed has one reading only: a word that says what it is,
        then a digest and tokens of fixed length.
        """
        hashes = self.block_hashes
        full = self.num_tokens // block_size
        if len(hashes) < full:
            previous = hashes[-1] if hashes else self.prefix_root
            with memoryview(self.token_ids) as tokens:
                for index in range(len(hashes), full):
                    digest = hashlib.sha256(b"block:" + previous)
                    with tokens[index * block_size : (index + 1) * block_size] as block:
                        digest.update(block)
                    previous = digest.digest()
                    hashes.append(previous)
        return hashes

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, {self.num_computed_tokens} of "
            f"{self.num_tokens} tokens computed, {self.num_prompt_tokens} in the prompt)"
        )


def _start_chain(cache_salt: str | None) -> bytes:
    """What the first block's digest is chained to. No salt is another one than the empty salt."""
    if cache_salt is None:
        return hashlib.sha256(b"root").digest()
    return hashlib.sha256(b"root:" + cache_salt.encode("utf-8", "surrogatepass")).digest()
