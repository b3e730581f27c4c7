"""The line of statistics: right numbers, and silence when nothing happens."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from hookserve.engine.messages import PrefixCacheStats, SchedulerStats
from hookserve.engine.stats import IterationStats
from hookserve.plugins_builtin.logging_stat_logger import LoggingStatLogger


@pytest.fixture
def stat_logger(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """A logger made at time 0; ``clock[0]`` is the time."""
    clock = [0.0]
    monkeypatch.setattr(
        "hookserve.plugins_builtin.logging_stat_logger.time",
        SimpleNamespace(monotonic=lambda: clock[0]),
    )
    caplog.set_level(logging.INFO, "hookserve.stats")
    made = LoggingStatLogger(SimpleNamespace(), 0)  # type: ignore[arg-type]
    made.clock = clock  # type: ignore[attr-defined]
    return made


def test_the_line_has_rates_of_the_interval(
    stat_logger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stat_logger.record(
        SchedulerStats(
            num_running_reqs=3,
            num_waiting_reqs=2,
            kv_cache_usage=0.255,
            num_prompt_tokens=100,
            prefix_cache_stats=PrefixCacheStats(requests=2, queries=200, hits=50),
            num_preempted_reqs=1,
        ),
        IterationStats(num_generation_tokens=30),
    )
    stat_logger.record(None, IterationStats(num_generation_tokens=20))
    stat_logger.clock[0] = 5.0
    stat_logger.log()
    (line,) = caplog.messages
    assert line == (
        "Engine 000: Avg prompt throughput: 20.0 tokens/s, "
        "Avg generation throughput: 10.0 tokens/s, Running: 3 reqs, Waiting: 2 reqs, "
        "Preemptions: 1, KV cache usage: 25.5%, Prefix cache hit rate: 25.0%"
    )


def test_counts_start_anew_and_idle_is_said_once(
    stat_logger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stat_logger.record(SchedulerStats(num_prompt_tokens=10), IterationStats())
    for now in (10.0, 20.0, 30.0):
        stat_logger.clock[0] = now
        stat_logger.log()
    rates = [re.findall(r"throughput: ([0-9.]+)", line) for line in caplog.messages]
    assert rates == [["1.0", "0.0"], ["0.0", "0.0"]]
