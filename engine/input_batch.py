"""``InputBatch``: the worker's state of live requests, one fixed row for each.

Rows live in preallocated arrays, so that a step is prepared by a few array operations over the
rows that take part, whatever their length. Which requests take part is the scheduler's decision;
what the model does with the arrays is the model runner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from .errors import ConfigError
from .logit_edits import LogitEdits
from .logprobs import PromptLogprobs
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .processor_set import ProcessedRequest


class InputBatch:
    """Arrays with a row for each slot. A request keeps its slot until it ends or is preempted.

    Raises:
        ConfigError: there is no memory for so many rows of such a length.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        # numpy's zeros are pages that the kernel maps when they are first written.
        try:
            self.token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int32)
            self.block_table_np = np.zeros((max_num_seqs, max_blocks), dtype=np.int64)
        except (MemoryError, ValueError) as error:  # the second: more than there are addresses
            raise ConfigError(
                f"--max-num-seqs {max_num_seqs} and --max-model-len {max_model_len}: there is no "
                "memory for so many requests of such a length; lower one of them"
            ) from error
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_computed_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_blocks = [0] * max_num_seqs
        self.sequences = np.zeros(max_num_seqs, dtype=np.int64)
        """A number for each filling of a slot, never used twice."""
        self._num_added = 0
        self.slots: dict[str, int] = {}
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    def add(self, req_id: str, token_ids: Sequence[int], block_ids: Sequence[int]) -> int:
        """Give the request a slot and fill its row; the slot."""
        assert req_id not in self.slots, req_id
        slot = self._free_slots.pop()
        self.slots[req_id] = slot
        self.token_ids[slot, : len(token_ids)] = token_ids
        self.num_tokens[slot] = len(token_ids)
        self._num_added += 1
        self.sequences[slot] = self._num_added
        self.append_blocks(slot, block_ids)
        return slot

    def append_blocks(self, slot: int, block_ids: Sequence[int]) -> None:
        start = self.num_blocks[slot]
        end = start + len(block_ids)
        self.block_table_np[slot, start:end] = block_ids
        self.num_blocks[slot] = end

    def remove(self, req_id: str) -> None:
        """Free the request's slot, if it has one."""
        slot = self.slots.pop(req_id, None)
        if slot is None:
            return
        self.block_table_np[slot, : self.num_blocks[slot]] = 0
        self.num_blocks[slot] = 0
        self.num_tokens[slot] = 0
        self.num_computed_tokens[slot] = 0
        self._free_slots.append(slot)

    def append_tokens(self, slots: np.ndarray, token_ids: np.ndarray) -> None:
        """One new token for each of the slots; a token behind the context's end is not kept."""
        ends = self.num_tokens[slots]
        fits = ends < self.token_ids.shape[1]
        self.token_ids[slots[fits], ends[fits]] = token_ids[fits]
        self.num_tokens[slots] = ends + fits


class RequestState:
    """What the worker keeps of a request from its first step to its end, preemptions included."""

    __slots__ = ("edits", "generator", "params", "processed", "prompt_logprobs")

    def __init__(
        self,
        params: SamplingParams,
        generator: torch.Generator,
        prompt_token_ids: Sequence[int],
        vocab_size: int,
    ) -> None:
        self.params = params
        self.generator = generator
        self.edits = LogitEdits.from_params(params, prompt_token_ids, vocab_size)
        self.prompt_logprobs: PromptLogprobs | None = None
        """Until they are sent."""
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = PromptLogprobs(params.prompt_logprobs, len(prompt_token_ids))
        self.processed: ProcessedRequest | None = None
        """For plugins' logits processors, where there are any."""
