"""``LogitsProcessor`` and ``AdapterLogitsProcessor``: what changes logits by rows of the step, and
by one function for each request. The third shape is ``slot_logits_processor``'s.

The interfaces are the ecosystem's (vLLM's V1). A plugin declares its classes by the hook
``logits_processor``; who calls them and when is ``processor_set``'s. Importing this file does not
import torch.
"""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hookserve.hookspecs.notify_loop import caught

from .sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from .vllm_config import VllmConfig

T = TypeVar("T")


class MoveDirectionality(enum.Enum):
    UNIDIRECTIONAL = enum.auto()
    """The request of the first row is now in the second one, which nobody held any more."""
    SWAP = enum.auto()
    """Both rows' requests have changed places."""


class OutputIds(list[int]):
    """The tokens that a request has generated, from its first to its last, preemptions included;
    and what processors keep for it just as long."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Any] = {}
        """By ``id`` of the processor, which lives as long as the worker."""


AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
"""Row, parameters, the prompt's tokens, and the *live* list of the output's: it grows."""
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True, slots=True)
class BatchUpdate:
    """How the rows of a step differ from those of the step before.

    To be applied in this order: ``removed``, then ``added`` (which replaces whoever had the row),
    then ``moved`` one after the other. No row is both removed and added. A request that is
    preempted is removed, and added again with the same list of its output, which by then is not
    empty.
    """

    batch_size: int
    """Rows of this step."""
    removed: Sequence[int]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of all rows of a step at once. One instance in each worker."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Look at a request's parameters (mostly ``extra_args``) before it is queued. Called in
        the front, on a copy.

        Raises:
            ValueError: the request is refused (400) with this sentence. An attribute ``param`` or
                ``parameter`` of the exception names the field.
        """
        del sampling_params

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        """
        Args:
            device: where the logits will be.
            is_pin_memory: whether tensors of the host should be pinned.
        """

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change the logits in place or return others.

        Args:
            logits: [rows, vocab] float32.
        """

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the best token always stays the best. If so, this is applied after temperature,
        and not where all rows are greedy. Asked once."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Told before each ``apply`` which request is in which row; ``None``: as before."""


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Bring what a processor keeps by row up to date.

    Args:
        new_state: what to keep for a request that came, of its parameters, its prompt's tokens and
            the live list of its output's; ``None``: nothing.

    Returns: whether anything changed.
    """
    if batch_update is None:
        return False
    changed = False
    for row in batch_update.removed:
        changed |= req_entries.pop(row, None) is not None
    for row, params, prompt_ids, output_ids in batch_update.added:
        changed |= req_entries.pop(row, None) is not None
        state = new_state(params, prompt_ids, output_ids)
        if state is not None:
            req_entries[row] = state
            changed = True
    for here, there, direction in batch_update.moved:
        mine, other = req_entries.pop(here, None), req_entries.pop(there, None)
        changed |= mine is not None or other is not None
        if mine is not None:
            req_entries[there] = mine
        if other is not None and direction is MoveDirectionality.SWAP:
            req_entries[here] = other
    return changed


RequestProcessor = Callable[..., Any]
"""``(output_ids, logits)`` or ``(prompt_ids, output_ids, logits)`` to logits ``[vocab]``."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Changes the logits row by row, by a function made for each request that wants one. The
    function lives as long as its request, preemptions included, and may keep a state; a row of it
    that fails fails its request alone."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory
        self.req_info: dict[int, Callable[[torch.Tensor], Any]] = {}
        """By row."""
        self.failures: dict[int, BaseException] = {}
        """What functions raised since ``take_failures``, by row."""

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestProcessor | None:
        """The function of a new request; ``None``: its logits stay as they are."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.req_info, batch_update, self._function_of)

    def _function_of(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> Callable[[torch.Tensor], Any] | None:
        """The request's function of its logits alone, made when it first comes; where that fails,
        one that fails likewise."""
        kept = output_ids.kept if isinstance(output_ids, OutputIds) else {}
        if id(self) not in kept:
            try:
                made = self.new_req_logits_processor(params)
                kept[id(self)] = _bind(made, prompt_ids, output_ids)
            except caught() as error:
                return _raising(error)
        function: Callable[[torch.Tensor], Any] | None = kept[id(self)]
        return function

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, function in self.req_info.items():
            try:
                logits[row] = _checked(function(logits[row]), logits)
            except caught() as error:
                self.failures[row] = error
        return logits

    def take_failures(self) -> dict[int, BaseException]:
        """What functions raised since the last call, by row."""
        failures, self.failures = self.failures, {}
        return failures


def _bind(
    function: RequestProcessor | None, prompt_ids: list[int] | None, output_ids: list[int]
) -> Callable[[torch.Tensor], Any] | None:
    if function is None:
        return None
    if len(inspect.signature(function).parameters) == 3:
        return lambda logits: function(prompt_ids, output_ids, logits)
    return lambda logits: function(output_ids, logits)


def _raising(error: BaseException) -> Callable[[torch.Tensor], Any]:
    def function(logits: torch.Tensor) -> Any:
        del logits
        raise error

    return function


def _checked(row: Any, logits: torch.Tensor) -> torch.Tensor:
    if getattr(row, "shape", None) != logits.shape[1:]:
        shape = tuple(logits.shape[1:])
        raise TypeError(f"a request's function gave {type(row).__name__}, expected logits {shape}")
    tensor: torch.Tensor = row
    return tensor
