"""Fixtures of the engine's tests: an engine core in this process, with one plugin host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def torch_threads() -> Iterator[None]:
    """Workers in this process choose how many threads torch uses; afterwards it is as before."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_fake_llm(tiny_llama: Path, torch_threads: None) -> Iterator[Callable[..., Any]]:
    """``make_fake_llm(worker, **arguments of LLM)``: its model says what
    ``fake_engine.continuation`` does."""
    import torch

    from hookserve.engine import LLM

    made = []

    def make(worker: str = "FakeWorker", **options: Any) -> LLM:
        settings = {
            "worker_cls": f"fake_engine:{worker}",
            "hf_overrides": {"vocab_size": 97, "max_position_embeddings": 128},
            "num_gpu_blocks_override": 64,
            "max_num_batched_tokens": 64,
        }
        llm = LLM(str(tiny_llama), **{**settings, **options})
        torch.set_num_threads(1)  # products so small are slower shared
        made.append(llm)
        return llm

    yield make
    for llm in made:
        llm.shutdown()


@pytest.fixture
def make_core() -> Iterator[Callable[..., Any]]:
    """``make_core(**make_config's arguments)``: an ``EngineCore`` over the fake model."""
    import torch

    from fake_engine import make_config
    from hookserve.engine.core import EngineCore
    from hookserve.engine.vllm_config import VllmConfig
    from hookserve.hookspecs import PluginSettings, bootstrap

    threads = torch.get_num_threads()
    host = bootstrap({"engine", "worker"}, PluginSettings(no_plugins=True))

    def make(**options: Any) -> EngineCore:
        core = EngineCore(VllmConfig.from_engine_config(make_config(**options)), host)
        torch.set_num_threads(1)  # products so small are slower shared
        return core

    yield make
    host.close()
    torch.set_num_threads(threads)


@pytest.fixture
def run_all() -> Callable[..., Any]:
    """``run_all(core)``: step until no request is left; what was said, folded."""
    from fake_engine import Collected

    def run(core: Any, collected: Collected | None = None) -> Collected:
        collected = collected or Collected()
        report = core.report_idle() if not core.has_work() else None
        if report is not None:
            collected.add(report.outputs)
        for _ in range(10_000):
            if not core.has_work():
                return collected
            collected.add(core.step().outputs)
            core.scheduler.check_integrity()
        raise AssertionError("the engine does not come to an end")

    return run
