"""Stat loggers as plugins write them for vLLM, in a front whose engine is a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client import REGISTRY, Gauge
from prometheus_client.registry import Collector

from hookserve.engine.messages import EngineCoreOutput, SchedulerStats, StepOutputs
from hookserve.engine.stat_loggers import StatLoggers
from hookserve.engine.stats import FrontStats
from hookserve.hookspecs import Host, PluginSettings, bootstrap
from plugin_folder import install_plugin
from scripted_engine import make_ready, say

SOURCE = """
from prometheus_client import Counter
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import (
    AggregateStatLoggerBase, LoggingStatLogger, PrometheusStatLogger, StatLoggerBase)
from vllm.v1.metrics.prometheus import get_prometheus_registry, unregister_vllm_metrics
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

logger = init_logger("vllm.counting")
made = []


class Counting(StatLoggerBase):
    def __init__(self, vllm_config: VllmConfig, engine_idx: int = 0):
        self.model = vllm_config.model_config.served_model_name
        self.engine = engine_idx
        self.calls = []
        self.num_tokens = self.num_steps = self.most_running = 0
        self.finished = []
        unregister_vllm_metrics()
        self.metric = Counter("vllm_counting_steps", "steps", registry=get_prometheus_registry())
        made.append(self)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ):
        self.num_steps += 1
        self.metric.inc()
        assert (mm_cache_stats, engine_idx) == (None, 0)
        if scheduler_stats is not None:
            self.most_running = max(self.most_running, scheduler_stats.num_running_reqs)
            assert scheduler_stats.num_waiting_reqs >= 0
            assert 0.0 <= scheduler_stats.kv_cache_usage <= 1.0
            assert scheduler_stats.prefix_cache_stats.hits == 0
        if iteration_stats is not None:
            self.num_tokens += iteration_stats.num_generation_tokens
            self.finished += iteration_stats.finished_requests

    def log(self):
        logger.info("counted %d tokens", self.num_tokens)
        self.calls.append("log")

    def log_engine_initialized(self):
        self.calls.append("initialized")


class OfAll(AggregateStatLoggerBase):
    def __init__(self, vllm_config, engine_indexes):
        self.engines = engine_indexes
        made.append(self)

    def record(self, *args, **kwargs):
        raise ValueError("broken")

    def log_engine_initialized(self):
        pass


class Labelled(PrometheusStatLogger):
    def __init__(self, vllm_config, engine_indexes=None):
        super().__init__(vllm_config, engine_indexes)
        made.append(self)


class Quiet(LoggingStatLogger):
    def log(self):
        pass


class NoLogger:
    pass


unbuilt = (NoLogger, StatLoggerBase)
"""
GROUP = "vllm.stat_logger_plugins"
ENTRIES = {name: f"stat_toys:{name}" for name in ("Counting", "OfAll", "Labelled", "Quiet")}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm_facade: None) -> Iterator[Any]:
    def do(entries: dict[str, str]) -> None:
        install_plugin(tmp_path, "stat-toys", {"stat_toys": SOURCE}, groups={GROUP: entries})
        monkeypatch.syspath_prepend(str(tmp_path))

    yield do
    sys.modules.pop("stat_toys", None)
    for name in ("vllm_counting_steps", "vllm_counting_steps_total"):
        collector = REGISTRY._names_to_collectors.get(name)
        if collector is not None:
            REGISTRY.unregister(collector)


class ReadyEngine:
    """In the place of a supervisor: the engine is there."""

    async def start(self) -> Any:
        return make_ready(64)

    def runs_what_is_out(self) -> bool:
        return False

    async def stop(self) -> None: ...


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.checklist(80, 81, 82, 85, 86, 87, 89)
def test_loggers_of_entry_points_are_told_of_every_step(
    install: Any, serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(ENTRIES)

    async def run() -> None:
        async with serve_script(say("abc"), settings={"log_stats_interval": 0.01}) as served:
            monkeypatch.setattr(served.runtime, "supervisor", ReadyEngine())
            await served.runtime.start()
            made = {type(each).__name__: each for each in sys.modules["stat_toys"].made}
            assert made["OfAll"].engines == [0]
            counting = made["Counting"]
            assert (counting.model, counting.engine) == ("m", 0)
            body = {"model": "m", "prompt": "x", "max_tokens": 3}
            reply = await served.http.post("/v1/completions", json=body)
            assert reply.status_code == 200
            await until(lambda: counting.finished and counting.calls.count("log") >= 2)
            assert counting.num_tokens == reply.json()["usage"]["completion_tokens"]
            assert counting.num_steps >= counting.num_tokens and counting.most_running == 1
            assert counting.calls[:2] == ["initialized", "log"]
            page = (await served.http.get("/metrics")).text
            assert f"vllm_counting_steps_total {float(counting.num_steps)}" in page
            # The plugin's own takes the built-in one's place: no name is shown twice, or hidden.
            (tokens,) = [x for x in page.splitlines() if x.startswith("hookserve_generation_t")]
            assert float(tokens.split()[-1]) == counting.num_tokens
            kinds = [type(each.instance).__name__ for each in served.runtime.loggers]
            assert sorted(kinds) == ["Counting", "Labelled", "LoggingStatLogger", "OfAll", "Quiet"]
            (broken,) = [x for x in served.runtime.loggers if x.name.endswith("OfAll")]
            assert broken.num_failures == counting.num_steps

    asyncio.run(run())


@pytest.mark.checklist(90)
def test_without_statistics_they_are_told_but_not_asked_to_log(
    install: Any, serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install({"Counting": ENTRIES["Counting"]})

    async def run() -> None:
        settings = {"log_stats_interval": 0.001, "disable_log_stats": True}
        async with serve_script(say("abc"), settings=settings) as served:
            monkeypatch.setattr(served.runtime, "supervisor", ReadyEngine())
            await served.runtime.start()
            (counting,) = sys.modules["stat_toys"].made
            await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
            await until(lambda: counting.finished)
            assert counting.calls == ["initialized"] and counting.num_tokens
            assert len(list(served.runtime.loggers)) == 3

    asyncio.run(run())


@pytest.mark.checklist(81, 87)
def test_what_is_recorded_has_vllms_names(install: Any) -> None:
    install({"Counting": ENTRIES["Counting"]})
    host = Host(["front"], PluginSettings())
    model = SimpleNamespace(served_model_name="m", max_model_len=10)
    loggers = StatLoggers.build(host, SimpleNamespace(model_config=model))  # type: ignore[arg-type]
    from vllm.v1.engine import FinishReason

    (counting,) = sys.modules["stat_toys"].made
    front = FrontStats()
    front.add_request("a", num_prompt_tokens=7, max_tokens=2, now=1.0)
    for at, reason in enumerate([None, "length"]):
        output = EngineCoreOutput("a", [5], finish_reason=reason, num_cached_tokens=4 - 4 * at)
        step = StepOutputs(1 + at, [output], SchedulerStats(num_running_reqs=1), 0.1)
        iteration = front.observe(step, now=2.0 + at)
        loggers.record(step.scheduler_stats, iteration)
        if not at:
            assert iteration.num_prompt_tokens == 7
            assert iteration.prompt_token_stats.get_by_source("local_compute") == 3
            assert iteration.time_to_first_tokens_iter == [1.0]
        else:
            assert iteration.inter_token_latencies_iter == [1.0]
    loggers.record(None, None)
    (finished,) = counting.finished
    assert finished.finish_reason is FinishReason.LENGTH
    assert str(finished.finish_reason) == "length" == FinishReason.LENGTH
    assert (finished.num_generation_tokens, finished.num_cached_tokens) == (2, 4)
    factory = sys.modules["stat_toys"].Counting
    alone = factory(SimpleNamespace(model_config=model))
    assert alone.engine == 0 and counting.num_tokens == 2
    host.close()


def test_metrics_named_after_vllm_are_forgotten_and_no_other_is_asked(vllm_facade: None) -> None:
    from vllm.v1.metrics.prometheus import get_prometheus_registry, unregister_vllm_metrics

    class Broken(Collector):
        def describe(self) -> Any:
            return []

        def collect(self) -> Any:
            raise RuntimeError("no numbers")

    registry, broken, other = get_prometheus_registry(), Broken(), Gauge("not_its", "another's")
    registry.register(broken)
    try:
        for _ in range(2):
            Gauge("vllm_twice", "a plugin's")
            unregister_vllm_metrics()
        assert other in registry._collector_to_names and broken in registry._collector_to_names
    finally:
        registry.unregister(broken)
        registry.unregister(other)


def test_metrics_of_the_process_fail_alone_and_hide_nothing_of_the_servers(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Collector):
        num_asked = 0

        def describe(self) -> Any:
            return []

        def collect(self) -> Any:
            self.num_asked += 1
            raise RuntimeError(f"no numbers, {self.num_asked}")

    async def run() -> None:
        async with serve_script(say("abc")) as served:
            plain = (await served.http.get("/metrics")).text
            assert "python_gc" not in plain and "own_gauge" not in plain
            gauge = Gauge("own_gauge", "a plugin's")
            double = Gauge("hookserve_num_requests_running", "of another meaning")
            double.set(77)
            broken = Broken()
            try:
                page = (await served.http.get("/metrics")).text
                assert "\nown_gauge 0.0\n" in page and " 77" not in page
                REGISTRY.register(broken)
                for _ in range(2):
                    page = (await served.http.get("/metrics")).text
                    assert "own_gauge" not in page and "hookserve_num_requests_running" in page
            finally:
                for each in (gauge, double, broken):
                    if each in REGISTRY._collector_to_names:
                        REGISTRY.unregister(each)

    asyncio.run(run())
    where = "prometheus_client.REGISTRY, where plugins keep their own"
    assert [each for each in caplog.messages if where in each] == [
        f"the metric hookserve_num_requests_running of {where} is not shown: the name is taken",
        f"no metric of {where} is shown: one cannot be read: RuntimeError: no numbers, 1",
    ]


@pytest.mark.checklist(84)
def test_an_offline_engine_builds_them_only_where_it_has_statistics(
    install: Any, tiny_llama: Path
) -> None:
    install({"Counting": ENTRIES["Counting"]})
    from vllm import LLM, SamplingParams

    threads = torch.get_num_threads()
    for off in (True, False):
        with LLM(str(tiny_llama), num_gpu_blocks_override=64, disable_log_stats=off) as llm:
            llm.generate([[5, 6]], SamplingParams(max_tokens=4, ignore_eos=True))
        module = sys.modules.get("stat_toys")
        made = [] if module is None else module.made
        assert len(made) == (0 if off else 1)
    assert (made[0].num_tokens, made[0].calls[0]) == (4, "initialized")
    torch.set_num_threads(threads)


@pytest.mark.checklist(82, 83)
def test_the_classes_of_the_group_are_listed_and_anything_else_is_a_type_error(
    install: Any,
) -> None:
    install({**ENTRIES, "wrong": "stat_toys:NoLogger"})
    host = bootstrap({"front"}, PluginSettings(deny=("wrong",)))
    from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories

    try:
        names = [each.__name__ for each in load_stat_logger_plugin_factories()]
        assert sorted(names) == ["Counting", "Labelled", "OfAll", "Quiet"]
    finally:
        host.close()
    _, base = sys.modules["stat_toys"].unbuilt
    assert base.__abstractmethods__ == {"__init__", "record", "log_engine_initialized"}
    host = bootstrap({"front"}, PluginSettings())
    try:
        with pytest.raises(TypeError, match=r"NoLogger'>; expected a subclass of vllm\.v1\.metr"):
            load_stat_logger_plugin_factories()
    finally:
        host.close()
