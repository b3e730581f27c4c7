"""The Prometheus metrics of the engine's statistics, and their text.

The names are modelled on vLLM's under our own prefix. Each ``EngineMetrics`` has a registry of its
own, so that several servers in one process do not meet. Filling them is the stat logger's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hookserve.engine.stat_loggers import GuardedLogger, StatLoggers
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught

logger = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST
PREFIX = "hookserve_"
LABELS = ("model_name", "engine")

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
         20, 40, 80, 160, 640, 2560)  # fmt: skip
_TOKEN_TIME = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
               0.75, 1, 2.5, 5, 10, 20, 40, 80)  # fmt: skip
_REQUEST_TIME = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
                 120, 240, 480, 960, 1920, 7680)  # fmt: skip
_SEQUENCES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (0, 1, 2, 3, 4, 5, 10, 20)
_ITERATION_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_OF_THE_LIBRARY = ("process_", "python_")
"""What prometheus_client keeps in the registry of each process."""


def token_buckets(max_tokens: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, … up to ``max_tokens``, and ``max_tokens`` itself."""
    buckets: list[float] = []
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if factor * scale >= max_tokens:
                return [*buckets, float(max_tokens)]
            buckets.append(float(factor * scale))
        scale *= 10


class EngineMetrics:
    """One engine's metrics, with ``model_name`` and ``engine`` already set."""

    def __init__(self, model_name: str, engine: str, max_model_len: int) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._values = (model_name, engine)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        tokens = token_buckets(max_model_len)
        self.num_requests_running = self._gauge("num_requests_running", "requests in the batch")
        self.num_requests_waiting = self._gauge("num_requests_waiting", "requests that wait")
        self.kv_cache_usage = self._gauge("kv_cache_usage_perc", "KV cache in use, 0 to 1")
        self.num_preemptions = self._counter("num_preemptions", "requests preempted")
        self.prefix_queries = self._counter("prefix_cache_queries", "tokens looked up")
        self.prefix_hits = self._counter("prefix_cache_hits", "tokens found")
        self.prompt_tokens = self._counter("prompt_tokens", "prompt tokens of started requests")
        self.prompt_tokens_cached = self._counter(
            "prompt_tokens_cached", "prompt tokens taken from the prefix cache"
        )
        self.generation_tokens = self._counter("generation_tokens", "tokens generated")
        self.iteration_tokens = self._histogram(
            "iteration_tokens_total", "tokens of one step", _ITERATION_TOKENS
        )
        self.ttft = self._histogram("time_to_first_token_seconds", "time to first token", _TTFT)
        self.itl = self._histogram(
            "inter_token_latency_seconds", "time between two tokens", _TOKEN_TIME
        )
        self.tpot = self._histogram(
            "request_time_per_output_token_seconds", "mean time a token", _TOKEN_TIME
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "prompt tokens a request", tokens
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "generated tokens a request", tokens
        )
        self.request_max_tokens = self._histogram(
            "request_params_max_tokens", "max_tokens of requests", tokens
        )
        self.request_max_generation_tokens = self._histogram(
            "request_max_num_generation_tokens", "tokens of a request's longest sequence", tokens
        )
        self.request_computed_tokens = self._histogram(
            "request_prefill_kv_computed_tokens", "prompt tokens not found in the cache", tokens
        )
        self.request_n = self._histogram("request_params_n", "n of requests", _SEQUENCES)
        self.request_preemptions = self._histogram(
            "request_num_preemptions", "how often a request was preempted", _PREEMPTIONS
        )
        self.e2e = self._request_time("e2e_request_latency_seconds", "whole request")
        self.queue_time = self._request_time("request_queue_time_seconds", "waiting")
        self.inference_time = self._request_time("request_inference_time_seconds", "running")
        self.prefill_time = self._request_time("request_prefill_time_seconds", "first token")
        self.decode_time = self._request_time("request_decode_time_seconds", "further tokens")
        self._success = Counter(
            PREFIX + "request_success",
            "requests that ended, by reason",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self.success(reason)

    def success(self, reason: str) -> Counter:
        """What counts the requests that ended so; plugins may have reasons of their own."""
        return self._success.labels(*self._values, reason)

    def set_cache_config(self, values: dict[str, str]) -> None:
        """The configuration of the cache as labels of a gauge that is 1."""
        info = Gauge(
            PREFIX + "cache_config_info",
            "configuration of the KV cache",
            ("engine", *values),
            registry=self.registry,
        )
        info.labels(self._values[1], *values.values()).set(1)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(PREFIX + name, text, LABELS, registry=self.registry)
        return gauge.labels(*self._values)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(PREFIX + name, text, LABELS, registry=self.registry)
        return counter.labels(*self._values)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(PREFIX + name, text, LABELS, buckets=buckets, registry=self.registry)
        return histogram.labels(*self._values)

    def _request_time(self, name: str, text: str) -> Histogram:
        return self._histogram(name, f"seconds a request: {text}", _REQUEST_TIME)


class MetricsPage:
    """The server's own metrics and those of all stat loggers, in Prometheus' text format: of those
    loggers that offer a registry as their attribute ``registry``. And what plugins have put into
    the registry of the process, beside what prometheus_client keeps there itself."""

    def __init__(self, loggers: StatLoggers, *own: Collector) -> None:
        self._loggers = loggers
        self._own = own
        self._told: set[tuple[str, ...]] = set()

    def text(self) -> bytes:
        """Of two metrics with one name the server's own is shown, or a built-in one, or the
        first."""
        taken: set[str] = set()
        own = [render(collector, taken)[0] for collector in self._own]
        builtin_first = sorted(self._loggers, key=lambda each: not each.plugin.is_builtin)
        of_loggers = [self._text_of(each, taken) for each in builtin_first]
        return b"".join([*own, *of_loggers, self._text_of_process(taken)])

    def _text_of_process(self, taken: set[str]) -> bytes:
        """Of the registry of the process. Nobody knows whose its metrics are."""
        whose = "prometheus_client.REGISTRY, where plugins keep their own"
        try:
            kept = [m for m in REGISTRY.collect() if not m.name.startswith(_OF_THE_LIBRARY)]
            text, hidden = render(_Families(kept), taken)
        except caught() as error:
            said = "no metric of %s is shown: one cannot be read: %s"
            self._tell(("", whose), said, whose, describe_error(error))
            return b""
        said = "the metric %s of %s is not shown: the name is taken"
        for name in hidden:
            self._tell((name, whose), said, name, whose)
        return text

    def _text_of(self, each: GuardedLogger, taken: set[str]) -> bytes:
        def read(instance: Any) -> tuple[bytes, list[str]]:
            registry = getattr(instance, "registry", None)
            return render(registry, taken) if hasattr(registry, "collect") else (b"", [])

        text, hidden = each.ask("its metrics", read) or (b"", [])
        said = "plugin %s: the metric %s of stat logger %s is not shown: the name is taken"
        for name in hidden:
            self._tell((name, each.owner, each.name), said, each.owner, name, each.name)
        return text

    def _tell(self, which: tuple[str, ...], said: str, *parts: str) -> None:
        """Warn of a metric, once."""
        if which not in self._told:
            self._told.add(which)
            logger.warning(said, *parts)


class _Families(NamedTuple):
    """What ``generate_latest`` takes for a registry."""

    collected: list[Metric]

    def collect(self) -> list[Metric]:
        return self.collected


def render(registry: Any, taken: set[str]) -> tuple[bytes, list[str]]:
    """The text of a registry, and the names of the metrics that were left out, because they are
    in ``taken``. Those that were not are added to it. Series of the kind ``_created``, which
    nobody scrapes for, are left out silently."""
    shown, hidden = [], []
    for metric in registry.collect():
        if metric.name in taken:
            hidden.append(metric.name)
            continue
        metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
        shown.append(metric)
    text = generate_latest(_Families(shown))
    taken.update(metric.name for metric in shown)
    return text, hidden
