"""Logits processors as plugins write them for vLLM, of every shape in one engine: those of entry
points, then those that the operator names by their paths."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_engine import Collected, make_config, make_request, next_token
from hookserve.engine.core import EngineCore
from hookserve.engine.errors import InvalidRequestError
from hookserve.engine.logits_processor import OutputIds
from hookserve.engine.processor_checks import ProcessorChecks
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap
from plugin_folder import install_plugin

SOURCE = """
import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import (
    LOGITSPROCS_GROUP, AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, MoveDirectionality,
    RequestLogitsProcessor, process_dict_updates)
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotLogitsProcessor

assert LOGITSPROCS_GROUP == "vllm.logits_processors"


def wants(name, params):
    found = (params.extra_args or {}).get("force", {})
    return found.get(name)


class Rows(LogitsProcessor):
    name = "rows"

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams):
        token = wants(cls.name, sampling_params)
        if token is not None and not isinstance(token, int):
            raise ValueError(f"{cls.name}: {token!r} is no token id")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        self.wanted = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update: BatchUpdate | None):
        process_dict_updates(self.wanted, batch_update, self.new_state)

    def new_state(self, params, prompt_ids, output_ids):
        token = wants(self.name, params)
        return None if token is None else (token, output_ids)

    def apply(self, logits):
        for row, (token, output_ids) in self.wanted.items():
            if len(output_ids) == 1:
                logits[row] = float("-inf")
                logits[row, token] = 0.0
        return logits


class Named(Rows):
    name = "named"


class Dotted(Rows):
    name = "dotted"


class Each(AdapterLogitsProcessor):
    @classmethod
    def validate_params(cls, sampling_params):
        pass

    def __init__(self, vllm_config, device, is_pin_memory):
        super().__init__(vllm_config, device, is_pin_memory)

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params) -> RequestLogitsProcessor | None:
        token = wants("each", params)
        if token is None:
            return None

        def change(output_ids, logits):
            if len(output_ids) == 1:
                logits[:] = float("-inf")
                logits[token] = 0.0
            return logits

        return change


class Slots(SlotLogitsProcessor):
    def __init__(self, vllm_config, req_states: LogitsProcRequestState):
        self.states = req_states
        self.tokens = np.full(req_states.max_num_reqs, -1)

    def add_request(self, req_idx, sampling_params):
        token = wants("slots", sampling_params)
        self.tokens[req_idx] = -1 if token is None else token
        return token is not None

    def apply(self, logits, ctx: LogitsContext):
        for row, slot in enumerate(ctx.idx_mapping_np):
            made = self.states.total_len.np[slot] - self.states.prompt_len.np[slot]
            if self.tokens[slot] >= 0 and made == 1:
                logits[row] = float("-inf")
                logits[row, self.tokens[slot]] = 0.0
        return logits
"""
ENTRIES = {"rows": "shapes:Rows", "each": "shapes:Each", "slots": "shapes:Slots"}
PATHS = ("shapes:Named", "shapes.Dotted")
PROMPT = [4, 5, 6]
Make = Callable[..., EngineCore]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm_facade: None) -> Iterator[Make]:
    """``make()``: a core over the fake model, where all five are installed and named."""
    install_plugin(
        tmp_path, "shapes", {"shapes": SOURCE}, groups={"vllm.logits_processors": ENTRIES}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(allow=()))
    config = make_config(logits_processors=PATHS)

    def start() -> EngineCore:
        core = EngineCore(VllmConfig.from_engine_config(config), host)
        torch.set_num_threads(1)
        return core

    start.host, start.config = host, config  # type: ignore[attr-defined]
    yield start
    host.close()
    sys.modules.pop("shapes", None)
    torch.set_num_threads(threads)


def forced(token: int) -> list[int]:
    """Three greedy tokens, of which the second is this one."""
    context = [*PROMPT, next_token(PROMPT), token]
    return [*context[3:], next_token(context)]


def test_every_shape_acts_on_its_own_request_in_one_batch(make: Make) -> None:
    core = make()
    for at, name in enumerate(["rows", "each", "slots", "named", "dotted"]):
        extra = {"force": {name: 60 + at}}
        core.add_request(make_request(name, PROMPT, max_tokens=3, extra_args=extra))
    # Of several that want another token the last one is heard.
    all_of_them = {"force": {"rows": 70, "named": 71, "dotted": 72}}
    core.add_request(make_request("last", PROMPT, max_tokens=3, extra_args=all_of_them))
    core.add_request(make_request("nobody's", PROMPT, max_tokens=3))
    collected = Collected()
    while core.has_work():
        collected.add(core.step().outputs)
    assert collected.tokens == {
        "rows": forced(60),
        "each": forced(61),
        "slots": forced(62),
        "named": forced(63),
        "dotted": forced(64),
        "last": forced(72),
        "nobody's": forced(next_token([*PROMPT, next_token(PROMPT)])),
    }


def test_the_front_asks_them_what_they_think_of_parameters(make: Any) -> None:
    checks = ProcessorChecks.build(make.host, make.config)
    checks.check(SamplingParams(extra_args={"force": {"rows": 60}}))
    with pytest.raises(InvalidRequestError, match="extra_args: rows: 'x' is no token id"):
        checks.check(SamplingParams(extra_args={"force": {"rows": "x"}}))


@pytest.mark.usefixtures("vllm_facade")
def test_what_is_kept_by_row_follows_an_update() -> None:
    from vllm.v1.sample.logits_processor import (
        BatchUpdateBuilder,
        LogitsProcessors,
        MoveDirectionality,
        process_dict_updates,
    )

    params, output = SamplingParams(), OutputIds()
    builder = BatchUpdateBuilder()
    assert builder.get_and_reset(3) is None
    builder.removed_append(2)
    builder.removed_append(0)
    assert (builder.peek_removed(), builder.removed) == (0, [2, 0])
    assert builder.pop_removed() == 0
    builder.added.append((0, params, [1], output))
    builder.moved.append((0, 1, MoveDirectionality.SWAP))
    builder.moved.append((3, 2, MoveDirectionality.UNIDIRECTIONAL))
    update = builder.get_and_reset(3)
    kept = {0: "old", 1: "one", 2: "gone", 3: "three"}
    assert process_dict_updates(kept, update, lambda *told: "new")
    assert kept == {0: "one", 1: "new", 2: "three"}
    assert not process_dict_updates(kept, None, lambda *told: "other")
    assert not process_dict_updates({}, update, lambda *told: None)
    assert builder.get_and_reset(3) is None and not builder.has_removed()
    assert list(LogitsProcessors().all) == []


@pytest.mark.usefixtures("vllm_facade")
def test_the_older_home_of_a_requests_function_is_served() -> None:
    import vllm.logits_process
    from vllm.v1.sample.logits_processor import RequestLogitsProcessor

    assert vllm.logits_process.LogitsProcessor is RequestLogitsProcessor
