"""``ProcessorSet``: the logits processors of one worker, each guarded alone: told of requests and
rows, and applied at its place among what the sampler does.

What a processor raises fails the requests that it acts on where that can be told, else all of the
step. Which classes there are is ``processor_classes``'; rows are compared by ``batch_rows``.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from hookserve.hookspecs import Host
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import describe_error, exc_info_of
from hookserve.hookspecs.guard import OBSERVE_FAILURES, OBSERVE_WINDOW_S
from hookserve.hookspecs.notify_loop import caught

from .batch_rows import BatchRows
from .input_batch import InputBatch
from .logits_processor import AdapterLogitsProcessor, BatchUpdate, OutputIds
from .processor_classes import ProcessorClass, find_processors
from .sampling_params import SamplingParams
from .slot_logits_processor import (
    LogitsContext,
    LogitsProcRequestState,
    SlotBuffer,
    SlotLogitsProcessor,
)
from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)

DEVICE = torch.device("cpu")
"""Where the sampler works, and so the processors."""


class ProcessedRequest:
    """What processors are told of a request, from its first step to its end, preemptions
    included."""

    __slots__ = ("error", "output_token_ids", "params", "prompt_token_ids")

    def __init__(self, params: SamplingParams, prompt_token_ids: Iterable[int]) -> None:
        # Sequences of one prompt have one object, and a plugin may write into it.
        self.params = msgspec.structs.replace(params, extra_args=copy.deepcopy(params.extra_args))
        self.prompt_token_ids = list(prompt_token_ids)
        self.output_token_ids = OutputIds()
        self.error: str | None = None
        """Why it fails as soon as it has a row."""


class StepRows(Protocol):
    """Of the runner's ``StepInputs``, what processors are told."""

    slots: np.ndarray
    sampled_rows: np.ndarray
    input_ids: torch.Tensor
    positions: torch.Tensor
    last_token_indices: torch.Tensor


class _Failed(Exception):
    """A processor raised; its cause is what."""


class _Guarded:
    """One processor, its owner, and what it has done wrong so far. Making this builds it.

    Args:
        make: builds an instance.
        budget_s: for one call. The first one of each method may take longer: what is compiled or
            fetched then is not fetched again.
    """

    def __init__(self, found: ProcessorClass, make: Callable[[], Any], budget_s: float) -> None:
        self.found = found
        self.instance = make()
        self.rows = BatchRows()
        """Those that it was told of last."""
        self._make = make
        self.off: str | None = None
        """Why it is called no more."""
        self._budget_s = budget_s
        self._called: set[str] = set()
        self._is_noted = False
        self._failures: deque[float] = deque(maxlen=OBSERVE_FAILURES)

    def acts_on(self, request: ProcessedRequest) -> bool:
        """Whether it is known that it changes the request's logits."""
        return bool(request.output_token_ids.kept.get(id(self.instance)))

    def must_act_on(self, request: ProcessedRequest) -> bool:
        """Whether the request cannot go on while this is switched off."""
        return self.found.is_wanted or bool(request.params.extra_args) or self.acts_on(request)

    def call(
        self, method: str, *args: Any, read: Callable[[Any], Any], is_of_one: bool = False
    ) -> Any:
        """
        Args:
            read: makes of the answer what is returned here; raises for one that is none.
            is_of_one: what it raises is about one request, and no reason to switch it off.

        Raises:
            _Failed
        """
        started = time.perf_counter()
        try:
            with enter(self.found.plugin):
                return read(getattr(self.instance, method)(*args))
        except caught() as error:
            self.note(method, error)
            if not is_of_one:
                self._count()
            raise _Failed from error
        finally:
            elapsed_s = time.perf_counter() - started
            if elapsed_s > self._budget_s and method in self._called:
                self._switch_off(
                    f"one call of {method} took {elapsed_s:.2g} s; it has {self._budget_s:g} s"
                )
            self._called.add(method)

    def renew(self) -> None:
        """Build it again, without rows: what it knows of them is not what it was told."""
        self.rows = BatchRows()
        try:
            with enter(self.found.plugin):
                self.instance = self._make()
        except caught() as error:
            self.note("being built again", error)
            self._switch_off("it cannot be built again")

    def note(self, method: str, error: BaseException) -> None:
        """A warning the first time; requests could fill the log."""
        logger.log(
            logging.DEBUG if self._is_noted else logging.WARNING,
            "%s failed in %s: %s; further failures are told to their requests alone",
            self.found.label,
            method,
            describe_error(error),
            exc_info=exc_info_of(error),
        )
        self._is_noted = True

    def sentence(self, error: BaseException) -> str:
        """For the client: what was raised may hold internals."""
        cause = error if error.__cause__ is None else error.__cause__
        return f"The {self.found.label} failed with {type(cause).__name__}."

    def _count(self) -> None:
        """One more failure of a whole step; too many within a short time are its last."""
        now = time.monotonic()
        self._failures.append(now)
        if len(self._failures) == OBSERVE_FAILURES and (
            now - self._failures[0] <= OBSERVE_WINDOW_S
        ):
            self._switch_off(f"{OBSERVE_FAILURES} failures in {OBSERVE_WINDOW_S:.0f} s")

    def _switch_off(self, reason: str) -> None:
        if self.off is None:
            self.off = reason
            logger.error("%s is switched off: %s", self.found.label, reason)


class ProcessorSet:
    """
    Args:
        early: by rows, before penalties.
        slots: by slots, between penalties and temperature.
        late: by rows, after temperature.
        states: of the slots.
    """

    def __init__(
        self,
        early: Sequence[_Guarded],
        slots: Sequence[_Guarded],
        late: Sequence[_Guarded],
        states: LogitsProcRequestState,
    ) -> None:
        self._early, self._slots, self._late = early, slots, late
        self._states = states
        self._requests: Sequence[ProcessedRequest] = ()
        self._context: LogitsContext | None = None
        self._entered: list[ProcessedRequest] = []
        """Since the last forward pass."""
        self._failed: dict[_Guarded, str] = {}
        """Those that failed in this step, and what is said of it."""
        self.errors: dict[int, str] = {}
        """Rows of this step that fail, and why."""

    @classmethod
    def build(cls, vllm_config: VllmConfig, host: Host, batch: InputBatch) -> ProcessorSet | None:
        """``None`` where there is no processor. One that cannot be built puts its plugin out.

        Raises:
            RequiredPluginError: that plugin must work.
            ConfigError: it belongs to no plugin.
        """
        found = find_processors(host, vllm_config.model_config.logits_processors)
        if not found:
            return None
        states = _make_states(vllm_config, batch)
        budget_s = host.settings.step_hook_timeout_s
        early: list[_Guarded] = []
        slots: list[_Guarded] = []
        late: list[_Guarded] = []
        for each in found:
            build: Any = each.cls
            by_slots = issubclass(each.cls, SlotLogitsProcessor)
            given: tuple[Any, ...] = (
                (vllm_config, states) if by_slots else (vllm_config, DEVICE, False)
            )
            try:
                with enter(each.plugin):
                    guarded = _Guarded(each, partial(build, *given), budget_s)
                    is_late = not by_slots and bool(guarded.instance.is_argmax_invariant())
            except caught() as error:
                each.refuse(host, f"could not be built as {each.constructor}", error)
            else:
                (slots if by_slots else late if is_late else early).append(guarded)
                logger.info("%s is used", each.label)
        return cls(early, slots, late, states)

    @property
    def _all(self) -> list[_Guarded]:
        return [*self._early, *self._slots, *self._late]

    # -- requests come ---------------------------------------------------------------------------

    def enter_slot(self, request: ProcessedRequest, slot: int, num_known: int) -> None:
        """A request, new or resumed, has this slot from now on.

        Args:
            num_known: its tokens so far.
        """
        self._states.prompt_len.np[slot] = len(request.prompt_token_ids)
        self._states.prefill_len.np[slot] = num_known
        for each in self._slots:
            if each.off is not None:
                continue
            try:
                acts = each.call("add_request", slot, request.params, read=bool, is_of_one=True)
                request.output_token_ids.kept[id(each.instance)] = acts
            except _Failed as error:
                request.error = each.sentence(error)
        self._entered.append(request)

    def before_forward(self) -> None:
        """Once in each step, behind all ``enter_slot``."""
        self._failed = {}
        entered, self._entered = self._entered, []
        for each in self._slots:
            if each.off is not None:
                continue
            try:
                each.call("apply_staged_writes", read=_nothing)
            except _Failed as error:
                self._failed[each] = each.sentence(error)
                # These may have their first row in a later step.
                for request in entered:
                    if each.acts_on(request):
                        request.error = each.sentence(error)

    # -- the step --------------------------------------------------------------------------------

    def begin(self, requests: Sequence[ProcessedRequest], inputs: StepRows) -> None:
        """Take the rows that will be sampled; afterwards the three stages are applied in order.

        Args:
            requests: of the rows.
        """
        self._requests = requests
        self.errors = {row: r.error for row, r in enumerate(requests) if r.error is not None}
        for each in self._all:
            if each.off is not None:
                self._refuse_rows(each)
        for each, sentence in self._failed.items():
            self._fail_rows(each, sentence)
        if self._slots:
            self._context = _make_context(inputs)
        for each in (*self._early, *self._late):
            if each.off is None:
                self._tell(each, each.rows.update(requests))

    def apply_early(self, logits: torch.Tensor) -> torch.Tensor:
        return self._apply(self._early, logits)

    def apply_slots(self, logits: torch.Tensor) -> torch.Tensor:
        return self._apply(self._slots, logits, self._context)

    def apply_late(self, logits: torch.Tensor) -> torch.Tensor:
        return self._apply(self._late, logits)

    def end(self, token_ids: Sequence[int]) -> None:
        """Take the token that each row got."""
        for request, token_id in zip(self._requests, token_ids, strict=True):
            request.output_token_ids.append(token_id)
        self._requests = ()

    @property
    def has_late(self) -> bool:
        return bool(self._late)

    @property
    def names(self) -> str:
        return ", ".join(each.found.name for each in self._all)

    def _apply(
        self, processors: Sequence[_Guarded], logits: torch.Tensor, *more: Any
    ) -> torch.Tensor:
        for each in processors:
            if each.off is not None or each in self._failed:
                continue
            shape = logits.shape
            try:
                logits = each.call("apply", logits, *more, read=partial(_as_logits, shape))
                if isinstance(each.instance, AdapterLogitsProcessor):
                    self._take_failures(each)
            except _Failed as error:
                if logits.shape != shape:
                    logits.resize_(shape)  # it was changed in place
                self._fail(each, error)
        return logits

    def _tell(self, each: _Guarded, update: BatchUpdate | None) -> None:
        """Of the rows."""
        try:
            each.call("update_state", update, read=_nothing)
        except _Failed as error:
            self._fail(each, error)
            each.renew()

    def _take_failures(self, each: _Guarded) -> None:
        """What an adapter's functions raised, each about one request."""
        read = partial(_as_failures, len(self._requests))
        failures: dict[int, BaseException] = {}
        try:
            failures = each.call("take_failures", read=read)
        except _Failed as error:
            self._fail(each, error)
            each.renew()
        for row, cause in failures.items():
            each.note("the function of a request", cause)
            self.errors.setdefault(row, each.sentence(cause))

    def _fail(self, each: _Guarded, error: _Failed) -> None:
        self._failed[each] = each.sentence(error)
        self._fail_rows(each, self._failed[each])

    def _fail_rows(self, each: _Guarded, sentence: str) -> None:
        """Those of the requests that it acts on, if it says which; else all."""
        tells = isinstance(each.instance, SlotLogitsProcessor)
        for row, request in enumerate(self._requests):
            if not tells or each.acts_on(request):
                self.errors.setdefault(row, sentence)

    def _refuse_rows(self, each: _Guarded) -> None:
        sentence = f"The {each.found.label}, which this request may need, is switched off."
        for row, request in enumerate(self._requests):
            if each.must_act_on(request):
                self.errors.setdefault(row, sentence)


def _nothing(answer: object) -> None:
    """Of a method whose answer means nothing."""


def _as_logits(shape: torch.Size, answer: Any) -> torch.Tensor:
    """
    Args:
        shape: of the logits that were given; they may have been changed in place.

    Raises:
        TypeError: the answer is no logits of that shape.
    """
    if not isinstance(answer, torch.Tensor) or answer.shape != shape:
        got = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise TypeError(f"apply gave {got}, expected logits {tuple(shape)}")
    if not answer.is_floating_point():
        raise TypeError(f"apply gave {answer.dtype}, expected logits of a floating-point type")
    plain = answer.detach().to("cpu", torch.float32).contiguous()
    return torch.from_numpy(plain.numpy())


def _as_failures(num_rows: int, answer: Any) -> dict[int, BaseException]:
    """
    Raises:
        IndexError: a function was called for a row that there is not.
    """
    failures = dict(answer)
    for row in failures:
        if type(row) is not int or not 0 <= row < num_rows:
            raise IndexError(f"a function was called for row {row!r} of {num_rows}")
    return failures


def _make_states(vllm_config: VllmConfig, batch: InputBatch) -> LogitsProcRequestState:
    slots = len(batch.num_tokens)
    return LogitsProcRequestState(
        device=DEVICE,
        max_num_reqs=slots,
        vocab_size=vllm_config.model_config.vocab_size,
        all_token_ids=SlotBuffer(batch.token_ids),
        prompt_len=SlotBuffer(np.zeros(slots, dtype=np.int64)),
        prefill_len=SlotBuffer(np.zeros(slots, dtype=np.int64)),
        total_len=SlotBuffer(batch.num_tokens),
    )


def _make_context(inputs: StepRows) -> LogitsContext:
    slots = inputs.slots[inputs.sampled_rows]
    mapping = torch.from_numpy(slots)
    positions = inputs.positions[inputs.last_token_indices].to(DEVICE)
    return LogitsContext(
        expanded_idx_mapping=mapping,
        idx_mapping=mapping,
        idx_mapping_np=slots,
        expanded_local_pos=torch.zeros_like(mapping),
        input_ids=inputs.input_ids[inputs.last_token_indices].to(DEVICE),
        pos=positions,
        seq_lens_upper_bound_np=(positions + 1).numpy(),
    )
