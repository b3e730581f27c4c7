"""``SlotLogitsProcessor``: what changes logits and keeps what it knows of a request in the
request's slot, a number that stays while the request runs.

The interface is the ecosystem's (vLLM's V2, where the class is called ``LogitsProcessor`` too). Who
calls it and when is ``processor_set``'s. Importing this file does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .vllm_config import VllmConfig


class SlotBuffer:
    """Numbers by slot, kept up by the runner: one memory, seen as an array and as a tensor. Only to
    be read."""

    __slots__ = ("cpu", "gpu", "np")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        import torch

        self.np = array
        self.cpu = torch.from_numpy(array)
        self.gpu = self.cpu
        """On the device where logits are changed, which is the CPU."""


@dataclass(frozen=True, slots=True)
class LogitsProcRequestState:
    """What is known of the requests in the slots; all of it is live."""

    device: torch.device
    """Where logits and the tensors here are."""
    max_num_reqs: int
    """Slots."""
    vocab_size: int
    all_token_ids: SlotBuffer
    """[slots, max_model_len]: prompt and output; valid up to ``total_len``."""
    prompt_len: SlotBuffer
    """[slots]: tokens of the prompt."""
    prefill_len: SlotBuffer
    """[slots]: tokens that were known when the request came into the slot: more than the prompt
    where it was preempted before."""
    total_len: SlotBuffer
    """[slots]: tokens that are known now."""


@dataclass(frozen=True, slots=True)
class LogitsContext:
    """Which rows a step has. A request has one row here, so "expanded" and plain are the same."""

    expanded_idx_mapping: torch.Tensor
    """[rows] int64: slot."""
    idx_mapping: torch.Tensor
    """[requests] int64: slot."""
    idx_mapping_np: np.ndarray[Any, Any]
    """The same."""
    expanded_local_pos: torch.Tensor
    """[rows] int64: the row's place among those of its request: 0."""
    input_ids: torch.Tensor
    """[rows] int64: the token that the model was given last."""
    pos: torch.Tensor
    """[rows] int64: that token's position."""
    seq_lens_upper_bound_np: np.ndarray[Any, Any]
    """[requests] int64: tokens that the next one follows; exact."""


class SlotLogitsProcessor(ABC):
    """Changes the logits of all rows of a step at once. One instance in each worker."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        """
        Args:
            req_states: may be kept, and read at any time.
        """
        del vllm_config, req_states

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """As ``logits_processor.LogitsProcessor.validate_params``."""
        del sampling_params

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Begin anew with a slot, whoever had it before. A request that was preempted comes again,
        mostly in another slot, with all its tokens in ``req_states``.

        Returns: whether this changes the request's logits.
        """
        del req_idx, sampling_params
        return True

    def apply_staged_writes(self) -> None:  # noqa: B027
        """Called once before each forward pass."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Change the logits in place or return others: after penalties, before temperature.

        Args:
            logits: [rows, vocab] float32: of all requests, those too that ``add_request`` declined.
        """
