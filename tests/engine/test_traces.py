"""That each mode of the engine really does what it is for, by what is counted on the way.

Right tokens do not show it: a prefix cache that never hits is as right as one that does. What is
computed is counted in front of the model itself, by the rows that it is given.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.messages import AddRequest
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap

BLOCK = 16


class Traced:
    """An engine core on a small random model, and what passed through it."""

    def __init__(self, model: str, host: Any, **options: Any) -> None:
        args = EngineArgs(
            model=model,
            dtype="float32",
            block_size=BLOCK,
            hf_overrides={"max_position_embeddings": 2048},
            **options,
        )
        self.core = EngineCore(VllmConfig.from_engine_config(args.to_engine_config(host)), host)
        torch.set_num_threads(1)  # products so small are slower shared
        self.rows: list[int] = []
        """Tokens that the model was given, step by step."""
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.stats = {"num_prompt_tokens": 0, "num_preempted_reqs": 0, "prefix_cache_hits": 0}
        self.core.executor.worker.get_model().register_forward_pre_hook(
            self._count, with_kwargs=True
        )

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        self.rows.append(len(kwargs["input_ids"]))

    def add(self, name: str, prompt: list[int], max_tokens: int, salt: str | None = None) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self.core.add_request(AddRequest(name, prompt, params, time.time(), cache_salt=salt))

    def step(self) -> None:
        report = self.core.step()
        for output in report.outputs:
            assert output.error is None, output
            if output.request_id not in self.tokens:
                self.cached[output.request_id] = output.num_cached_tokens
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        for name in self.stats:
            self.stats[name] += getattr(report.scheduler_stats, name)

    def run(self, name: str, prompt: list[int], max_tokens: int = 1, **asked: Any) -> list[int]:
        """One request to its end; the rows that the model was given for it."""
        before = len(self.rows)
        self.add(name, prompt, max_tokens, **asked)
        self.finish()
        return self.rows[before:]

    def finish(self) -> None:
        while self.core.has_work():
            self.step()
        self.core.check_integrity()


@pytest.fixture
def traced(tiny_llama) -> Iterator[Callable[..., Traced]]:
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    yield lambda **options: Traced(str(tiny_llama), host, **options)
    host.close()
    torch.set_num_threads(threads)


def prompt_of(length: int, first: int = 0) -> list[int]:
    return [(first + 7 * at + at * at) % 250 for at in range(length)]


def test_an_equal_prompt_is_computed_once_for_each_salt(traced):
    engine = traced(max_num_batched_tokens=2048)
    prompt = prompt_of(1024)
    assert engine.run("a", prompt, salt="a") == [1024]
    (again,) = engine.run("a again", prompt, salt="a")
    assert again < 32
    assert engine.run("b", prompt, salt="b") == [1024]
    assert engine.run("none", prompt) == [1024]
    # The counters that operators see say the same.
    assert engine.stats["num_prompt_tokens"] == 3 * 1024 + again
    assert engine.stats["prefix_cache_hits"] == 1024 - again
    assert engine.cached == {"a": 0, "a again": 1024 - again, "b": 0, "none": 0}
    assert len({tuple(tokens) for tokens in engine.tokens.values()}) == 1


def test_without_the_prefix_cache_an_equal_prompt_is_computed_again(traced):
    engine = traced(enable_prefix_caching=False)
    prompt = prompt_of(200)
    assert engine.run("a", prompt) == engine.run("b", prompt) == [200]
    assert engine.stats["prefix_cache_hits"] == 0


def test_a_budget_of_64_computes_1500_tokens_in_24_steps(traced):
    engine = traced(max_num_batched_tokens=64, max_num_seqs=8)
    assert engine.run("a", prompt_of(1500)) == [64] * 23 + [28]
    assert engine.core.num_steps == 24


def test_preemption_recomputes_and_changes_no_token(traced):
    tokens, rows = [], []
    for blocks in (40, 12):
        engine = traced(
            num_gpu_blocks_override=blocks,
            max_model_len=12 * BLOCK,
            max_num_seqs=4,
            enable_prefix_caching=False,
        )
        for n in range(4):
            engine.add(f"r{n}", prompt_of(40, n), max_tokens=40)
        engine.finish()
        tokens.append(engine.tokens)
        rows.append(sum(engine.rows))
        assert (engine.stats["num_preempted_reqs"] > 0) == (blocks == 12)
    assert tokens[0] == tokens[1]
    # A preempted request is computed anew from its beginning.
    assert rows[1] - rows[0] > 40


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def test_a_decode_step_leaves_nothing_behind(traced):
    engine = traced(max_num_seqs=4)
    for n in range(4):
        engine.add(f"r{n}", prompt_of(30, n), max_tokens=400)
    for _ in range(20):
        engine.core.step()
    tensors, blocks = live_tensors(), sys.getallocatedblocks()
    for _ in range(100):
        engine.core.step()
    assert live_tensors() == tensors
    # What may grow is the record of a request: its digests and its blocks.
    assert sys.getallocatedblocks() - blocks <= 3 * 100 * 4


def count_calls(engine: Traced, steps: int) -> Counter[str]:
    """Calls of Python and C functions in so many steps, by name."""
    calls: Counter[str] = Counter()

    def trace(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[f"{frame.f_code.co_qualname} calls {arg.__qualname__}"] += 1

    gc.disable()
    sys.setprofile(trace)
    try:
        for _ in range(steps):
            engine.core.step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_a_decode_steps_python_work_does_not_grow_with_the_context(traced):
    calls = {}
    for context in (64, 1024):
        engine = traced()
        # The first decoding steps of a process call what later ones find made.
        engine.run("first", prompt_of(20), max_tokens=40)
        engine.add("a", prompt_of(context - 1, context), max_tokens=200)
        while engine.core.scheduler.requests["a"].num_tokens < context:
            engine.core.step()
        # So many steps that each also begins a block once.
        calls[context] = count_calls(engine, BLOCK)
    assert calls[64].total() > 1000
    assert calls[64] == calls[1024]
