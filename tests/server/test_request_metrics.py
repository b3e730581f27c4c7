"""The metrics of whole requests: labels of plugins, their bounds, and what is no label."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hookserve.hookspecs import ApiRequest, Refusal, RequestRecord, hookimpl
from hookserve.server.metrics import render
from hookserve.server.request_metrics import MAX_LABELS, MAX_SERIES, MAX_VALUES, RequestMetrics
from scripted_engine import say

COMPLETIONS = "/v1/completions"


def record(reason: str | None = "stop", latency_s: float = 0.5, **labels: str) -> RequestRecord:
    return RequestRecord(
        "r", COMPLETIONS, "m", 1, 2, reason, None, 0.0, 0.1, latency_s, labels=labels
    )


def samples(text: str, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """The values of a metric by its labels; absent and empty ones are the same."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                labels = frozenset((k, v) for k, v in sample.labels.items() if v)
                assert labels not in found
                found[labels] = sample.value
    return found


def shown(metrics: RequestMetrics, name: str = "hookserve_requests_total") -> Any:
    text, hidden = render(metrics, set())
    assert hidden == []
    return samples(text.decode(), name)


def by_label(values: Mapping[frozenset[tuple[str, str]], float], label: str) -> dict[str, float]:
    counted: dict[str, float] = {}
    for labels, value in values.items():
        key = dict(labels).get(label, "")
        counted[key] = counted.get(key, 0) + value
    return counted


def test_requests_are_counted_by_how_they_ended() -> None:
    metrics = RequestMetrics()
    for latency_s in (0.25, 0.5):
        metrics.observe(record("stop", latency_s))
    metrics.observe(record("error", 1.0))
    metrics.observe(record(None, 2.0))
    own = {("model_name", "m"), ("route", COMPLETIONS)}
    assert shown(metrics) == {
        frozenset({*own, ("finish_reason", reason)}): count
        for reason, count in (("stop", 2), ("error", 1), ("none", 1))
    }
    assert shown(metrics, "hookserve_request_seconds_count") == shown(metrics)
    seconds = by_label(shown(metrics, "hookserve_request_seconds_sum"), "finish_reason")
    assert seconds == {"stop": 0.75, "error": 1.0, "none": 2.0}


def test_a_hundred_values_of_a_label_are_kept_apart_and_the_rest_is_other() -> None:
    metrics = RequestMetrics()
    for at in range(10_000):
        labels = metrics.claim("p", {"tenant": f"t{at}", "tier": "gold" if at % 2 else "free"})
        metrics.observe(record(**labels))
    metrics.observe(record(tenant="t7", tier="gold"))
    tenants = by_label(shown(metrics), "tenant")
    assert len(tenants) == MAX_VALUES + 1
    assert tenants["t7"] == 2
    assert tenants["t99"] == 1
    assert tenants["other"] == 10_000 - MAX_VALUES
    assert by_label(shown(metrics), "tier") == {"gold": 5001, "free": 5000}


def test_combinations_are_bounded_and_none_is_lost() -> None:
    metrics = RequestMetrics()
    for at in range(3 * MAX_SERIES):
        labels = metrics.claim("p", {"a": str(at % 100), "b": str(at // 100)})
        metrics.observe(record(**labels))
    values = shown(metrics)
    assert len(values) == MAX_SERIES + 1
    assert sum(values.values()) == 3 * MAX_SERIES
    assert by_label(values, "a")["other"] == 2 * MAX_SERIES


def test_a_label_that_comes_later_leaves_the_series_before_it_alone() -> None:
    metrics = RequestMetrics()
    metrics.observe(record(**metrics.claim("p", {"b": "1"})))
    metrics.observe(record(**metrics.claim("q", {"a": "2"})))
    metrics.observe(record(**metrics.claim("p", {"b": "1"})))
    metrics.observe(record())
    own = {("model_name", "m"), ("route", COMPLETIONS), ("finish_reason", "stop")}
    assert shown(metrics) == {
        frozenset({*own, ("b", "1")}): 2,
        frozenset({*own, ("a", "2")}): 1,
        frozenset(own): 1,
    }


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("tenant=a", "a str; expected a mapping"),
        ([("tenant", "a")], "a list; expected a mapping"),
        ({1: "a"}, "name is a int"),
        ({"ten-ant": "a"}, "'ten-ant' is no name for Prometheus"),
        ({"": "a"}, "no name for Prometheus"),
        ({"__name__": "a"}, "'__name__' is no name for Prometheus"),
        ({"tenant\n": "a"}, "no name for Prometheus"),
        ({"model_name": "a"}, "'model_name' is taken"),
        ({"le": "a"}, "'le' is taken"),
        ({"tenant": 7}, "'tenant' is a int; expected a text"),
        ({"tenant": None}, "'tenant' is a NoneType"),
        ({"tenant": "x" * 201}, "201 characters; 200 are the limit"),
        ({"tenant": "\ud800"}, "surrogates"),
        ({f"l{at}": "a" for at in range(MAX_LABELS + 1)}, "9 labels of plugins; 8 are the limit"),
    ],
)
def test_what_is_no_label_is_refused_whole(labels: Any, said: str) -> None:
    metrics = RequestMetrics()
    with pytest.raises((TypeError, ValueError), match=said):
        metrics.claim("p", labels)
    assert metrics.claim("q", {"tenant": "a"}) == {"tenant": "a"}


def test_a_label_belongs_to_one_plugin() -> None:
    metrics = RequestMetrics()
    metrics.claim("first", {"tenant": "a"})
    with pytest.raises(ValueError, match="'tenant' is that of first"):
        metrics.claim("second", {"tenant": "b"})


# -- in the server ---------------------------------------------------------------------------------


class Labels:
    """A plugin that labels requests with a header, and keeps the records."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.records: list[RequestRecord] = []

    @hookimpl
    def metric_labels(self, request: ApiRequest) -> Any:
        return self.answer or {"tenant": request.headers["x-tenant"]}

    @hookimpl
    async def request_finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def test_plugins_label_the_requests_of_the_metrics_page(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Labels):
        pass

    labels, broken = Labels(), Broken({"route": "mine"})

    async def run() -> str:
        async with serve_script(say("hello"), plugins=[labels, broken]) as served:
            for tenant in ("red", "blue", "red"):
                body = {"prompt": "a", "stream": tenant == "blue"}
                await served.http.post(COMPLETIONS, json=body, headers={"x-tenant": tenant})
            async with asyncio.timeout(5):
                while len(labels.records) < 3:
                    await asyncio.sleep(0.001)
            return str((await served.http.get("/metrics")).text)

    page = asyncio.run(run())
    counted = by_label(samples(page, "hookserve_requests_total"), "tenant")
    assert counted == {"red": 2, "blue": 1}
    assert sorted(r.labels["tenant"] for r in labels.records) == ["blue", "red", "red"]
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "object:Broken failed in metric_labels" in line


def test_a_request_that_a_plugin_refuses_is_labelled_too(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses(Labels):
        @hookimpl
        def before_request(self, request: ApiRequest) -> Refusal:
            return Refusal("not now")

    plugin = Refuses()

    async def run() -> str:
        async with serve_script(say("hello"), plugins=[plugin]) as served:
            headers = {"x-tenant": "red", "x-request-id": "r-1"}
            await served.http.post(COMPLETIONS, json={"prompt": "a"}, headers=headers)
            async with asyncio.timeout(5):
                while not plugin.records:
                    await asyncio.sleep(0.001)
            return str((await served.http.get("/metrics")).text)

    with caplog.at_level("DEBUG", "hookserve.hookspecs.request_calls"):
        page = asyncio.run(run())
    (labels,) = samples(page, "hookserve_requests_total")
    assert {("tenant", "red"), ("finish_reason", "error")} < labels
    assert "request r-1 is refused by plugin object:Refuses: 429 refused: not now" in caplog.text


def test_requests_are_counted_where_nobody_labels_them(serve_script: Any) -> None:
    async def run() -> str:
        async with serve_script(say("hello")) as served:
            await served.http.post(COMPLETIONS, json={"prompt": "a"})
            await served.http.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1000})
            await served.http.post(COMPLETIONS, json={"prompt": 1.5})
            return str((await served.http.get("/metrics")).text)

    counted = by_label(samples(asyncio.run(run()), "hookserve_requests_total"), "finish_reason")
    # What is no request at all is not counted.
    assert counted == {"length": 1, "error": 1}
