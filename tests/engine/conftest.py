"""Fixtures of the engine's tests: an engine core in this process, with one plugin host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


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
        return EngineCore(VllmConfig.from_engine_config(make_config(**options)), host)

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
