"""Logits processors of every shape, for tests: each acts on the requests that call it by its name,
``extra_args={"by": "RowForcer", "at": 7, "token": 5}``: the 7th token is 5.

They look at what they are told while they run, and raise where it is wrong, which fails requests.
Importing this imports no torch: fronts that ask ``validate_params`` do.
"""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar

from hookserve.engine.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.slot_logits_processor import (
    LogitsContext,
    LogitsProcRequestState,
    SlotLogitsProcessor,
)


def arguments(params: SamplingParams) -> dict[str, Any]:
    return params.extra_args or {}


def force(row: Any, token: int) -> None:
    row[:] = -math.inf
    row[token] = 0.0


def apply_update(rows: dict[int, Any], update: BatchUpdate) -> None:
    """As the docstring of ``BatchUpdate`` says."""
    for row in update.removed:
        del rows[row]
    for row, *told in update.added:
        rows[row] = told
    for here, there, direction in update.moved:
        if direction is MoveDirectionality.SWAP:
            rows[here], rows[there] = rows[there], rows[here]
        else:
            assert there not in rows, "somebody has that row"
            rows[there] = rows.pop(here)


class RowForcer(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        assert (device.type, is_pin_memory) == ("cpu", False)
        self.rank = vllm_config.parallel_config.rank
        self.rows: dict[int, Any] = {}
        self.size = 0

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            apply_update(self.rows, batch_update)
            self.size = batch_update.batch_size
        assert sorted(self.rows) == list(range(self.size))

    def apply(self, logits: Any) -> Any:
        assert len(logits) == self.size
        for row, (params, prompt_ids, output_ids) in self.rows.items():
            given = arguments(params)
            if given.get("by") != type(self).__name__:
                continue
            assert prompt_ids == given.get("prompt", prompt_ids)
            if len(output_ids) == given["at"] - 1:
                force(logits[row], given["token"])
        return logits


class OtherOnRankOne(RowForcer):
    """What it forces is one more on the second rank."""

    def apply(self, logits: Any) -> Any:
        return super().apply(logits).roll(self.rank, -1)


class Counter(AdapterLogitsProcessor):
    """Counts its own calls, so that it must be called once for each token, and be kept."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        given = arguments(sampling_params)
        if given.get("by") == cls.__name__ and type(given.get("at")) is not int:
            raise ValueError(f"at: {given.get('at')!r} is no number")
        given.clear()  # of a copy

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        given = arguments(params)
        if given.get("by") != type(self).__name__:
            return None
        count = 0

        def function(prompt_ids: list[int], output_ids: list[int], logits: Any) -> Any:
            nonlocal count
            count += 1
            assert len(output_ids) == count - 1
            assert prompt_ids == given.get("prompt", prompt_ids)
            if count == given["at"]:
                force(logits, given["token"])
            return logits

        return function


class SlotForcer(SlotLogitsProcessor):
    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self.states = req_states
        self.wanted: dict[int, Any] = {}
        self.staged: list[int] = []
        self.ready: set[int] = set()

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        given = arguments(sampling_params)
        self.wanted[req_idx] = given if given.get("by") == type(self).__name__ else None
        self.ready.discard(req_idx)
        self.staged.append(req_idx)
        return self.wanted[req_idx] is not None

    def apply_staged_writes(self) -> None:
        self.ready.update(self.staged)
        self.staged.clear()

    def apply(self, logits: Any, ctx: LogitsContext) -> Any:
        states = self.states
        assert ctx.expanded_idx_mapping.tolist() == ctx.idx_mapping_np.tolist()
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            assert slot in self.ready
            total = int(states.total_len.np[slot])
            tokens = states.all_token_ids.gpu[slot, :total].tolist()
            assert (ctx.pos[row], ctx.input_ids[row]) == (total - 1, tokens[-1])
            assert ctx.seq_lens_upper_bound_np[row] == total
            assert states.prompt_len.np[slot] <= states.prefill_len.np[slot] <= total
            given = self.wanted[slot]
            if given is None:
                continue
            num_prompt = int(states.prompt_len.np[slot])
            assert tokens[:num_prompt] == given.get("prompt", tokens[:num_prompt])
            if total - num_prompt == given["at"] - 1:
                force(logits[row], given["token"])
        return logits


FORCERS = ("processors:RowForcer", "processors:Counter", "processors:SlotForcer")


# -- what they may do wrong -----------------------------------------------------------------------


def misbehave(params: SamplingParams, moment: str) -> None:
    """Do what the request says, at the moment that it says."""
    given = arguments(params)
    if given.get("when") == moment:
        what = given["fault"]
        if what == "raise":
            raise ZeroDivisionError("the secret is 42")
        if what == "exit":
            raise SystemExit(3)
        if what == "sleep":
            time.sleep(0.6)


class FaultyRows(RowForcer):
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        for _, params, *_ in () if batch_update is None else batch_update.added:
            misbehave(params, "update_state")
        super().update_state(batch_update)

    def apply(self, logits: Any) -> Any:
        faults = [arguments(params).get("fault") for params, *_ in self.rows.values()]
        for params, *_ in self.rows.values():
            misbehave(params, "apply")
        if "shape" in faults:
            return logits[:, :-1]
        if "in place" in faults:
            return logits.resize_(logits.shape[0], 1)
        if "whole" in faults:
            return logits.long()
        if "nothing" in faults:
            return None
        for row, fault in enumerate(faults):
            if fault == "ban":
                logits[row] = -math.inf
        return logits


class FaultyCounter(Counter):
    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        misbehave(sampling_params, "validate_params")
        if arguments(sampling_params).get("fault") == "refuse":
            raise ValueError("such arguments are not for me")

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        misbehave(params, "new")
        if "fault" not in arguments(params):
            return None

        def function(output_ids: list[int], logits: Any) -> Any:
            misbehave(params, "apply")
            return logits[:-1] if arguments(params)["fault"] == "shape" else logits

        return function


class StrayRows(FaultyCounter):
    """Calls a function for a row that there is not."""

    def apply(self, logits: Any) -> Any:
        if any(callable(function) for function in self.req_info.values()):
            self.req_info[50] = lambda logits: logits
        return super().apply(logits)


class OddLogits(RowForcer):
    """Answers with what only looks like logits."""

    def apply(self, logits: Any) -> Any:
        import torch

        if all(params.extra_args is None for params, *_ in self.rows.values()):
            return logits
        return torch.empty_like(logits, device="meta")


class FaultySlots(SlotForcer):
    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        misbehave(sampling_params, "add_request")
        super().add_request(req_idx, sampling_params)
        self.wanted[req_idx] = sampling_params
        return "fault" in arguments(sampling_params)

    def apply_staged_writes(self) -> None:
        staged = [self.wanted[slot] for slot in self.staged]
        super().apply_staged_writes()
        for params in staged:
            misbehave(params, "apply_staged_writes")

    def apply(self, logits: Any, ctx: LogitsContext) -> Any:
        for slot in ctx.idx_mapping_np.tolist():
            misbehave(self.wanted[slot], "apply")
        return logits


class HostileSlots(FaultySlots):
    """Its answers cannot be looked at."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> Any:
        super().add_request(req_idx, sampling_params)
        return Hostile() if sampling_params.extra_args else True


class Hostile:
    def __bool__(self) -> bool:
        raise RuntimeError("hands off")


class Unbuildable(RowForcer):
    def __init__(self, *args: Any) -> None:
        raise OSError("no such table")


# -- what they are given --------------------------------------------------------------------------


class Seen:
    """The first row of what each stage was given last, by the stage's name."""

    rows: ClassVar[dict[str, Any]] = {}


class SeesEarly(RowForcer):
    def apply(self, logits: Any) -> Any:
        Seen.rows[type(self).__name__] = logits[0].clone()
        return logits


class SeesLate(SeesEarly):
    def is_argmax_invariant(self) -> bool:
        return True


class SeesSlots(SlotForcer):
    def apply(self, logits: Any, ctx: LogitsContext) -> Any:
        Seen.rows[type(self).__name__] = logits[0].clone()
        return logits
