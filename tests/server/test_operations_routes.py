"""Models, health, version, metrics and plugins as an operator sees them."""

from __future__ import annotations

import asyncio
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from hookserve.hookspecs import ApiRequest, RequestRecord, hookimpl
from hookserve.hookspecs.context import running
from scripted_engine import say


class RaisingLogger:
    """A stat logger that fails in every call."""

    num_calls = 0

    def __init__(self, config: Any, engine_index: int) -> None:
        assert config.model_config.served_model_name == "m"
        assert engine_index == 0

    def record(self, *args: Any) -> None:
        RaisingLogger.num_calls += 1
        raise ValueError("broken logger")

    def log(self) -> None:
        raise ValueError("broken logger")

    def log_engine_initialized(self) -> None:
        pass


class KeepingLogger:
    """A stat logger that keeps what it was given."""

    made: ClassVar[list[KeepingLogger]] = []

    def __init__(self, config: Any, engine_index: int) -> None:
        self.recorded: list[tuple[Any, ...]] = []
        KeepingLogger.made.append(self)

    def record(self, *args: Any) -> None:
        self.recorded.append(args)

    def log(self) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass


class UnbuildableLogger(KeepingLogger):
    def __init__(self, config: Any, engine_index: int) -> None:
        raise SystemExit(3)


class BrokenMetricsLogger(KeepingLogger):
    """Its registry raises when it is asked."""

    @property
    def registry(self) -> Any:
        return self

    def collect(self) -> Any:
        raise ValueError("broken collector")


class TwinMetricsLogger(KeepingLogger):
    """Offers a metric of its own, and one under a built-in name."""

    def __init__(self, config: Any, engine_index: int) -> None:
        super().__init__(config, engine_index)
        self.registry = CollectorRegistry()
        for name in ("hookserve_num_requests_running", "mine"):
            Gauge(name, "a test", registry=self.registry).set(77)

    def record(self, *args: Any) -> None:
        self.recorded.append((running(),))


class BrokenMetricsPlugin:
    @hookimpl
    def stat_logger(self) -> Any:
        return BrokenMetricsLogger


class TwinMetricsPlugin:
    @hookimpl
    def stat_logger(self) -> Any:
        return TwinMetricsLogger


class RaisingPlugin:
    @hookimpl
    def stat_logger(self) -> Any:
        return RaisingLogger


class KeepingPlugin:
    @hookimpl
    def stat_logger(self) -> Any:
        return KeepingLogger


class UnbuildablePlugin:
    @hookimpl
    def stat_logger(self) -> Any:
        return UnbuildableLogger


def test_models(serve_script: Any, source_root: Path) -> None:
    async def run() -> None:
        async with serve_script(say("a"), generation_config={"top_k": 7}) as served:
            listed = (await served.http.get("/v1/models")).json()
            one = await served.http.get("/v1/models/org/alias")
            none = await served.http.get("/v1/models/other")
        assert listed["object"] == "list"
        assert [card["id"] for card in listed["data"]] == ["m", "org/alias"]
        assert one.json() == listed["data"][1]
        assert one.json()["object"] == "model"
        assert one.json()["max_model_len"] == 128
        assert one.json()["defaults"]["top_k"] == 7
        limits = one.json()["limits"]
        assert limits["tokens"] == 128 and min(limits.values()) > 0
        page = (source_root / "docs" / "api.md").read_text(encoding="utf-8")
        (table,) = re.findall(r"## Limits\n(.*?)\n## ", page, re.DOTALL)
        first_column = "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE))
        assert re.findall(r"`([a-z_]+)`", first_column) == list(limits)
        assert none.status_code == 404
        assert none.json()["error"]["code"] == "model_not_found"

    asyncio.run(run())


def test_health_follows_the_phases(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            http, health = served.http, served.runtime.health
            for path in ("/livez", "/readyz", "/health"):
                assert (await http.get(path)).status_code == 200
            health.set_draining()
            for path in ("/readyz", "/health"):
                reply = await http.get(path)
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
            health.set_dead("gone")
            reply = await http.get("/readyz")
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")
            health.set_ready()
            assert (await http.get("/readyz")).status_code == 503, "the dead do not rise"
            assert (await http.get("/livez")).status_code == 200

    asyncio.run(run())


def test_version(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            assert (await served.http.get("/version")).json() == {"version": version("hookserve")}

    asyncio.run(run())


def samples_of(text: str) -> dict[tuple[str, str], float]:
    """Values by name and ``finished_reason``."""
    return {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def test_metrics_count_what_was_done(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("hello")) as served:
            for body in ({"prompt": "abc"}, {"prompt": "abc", "stop": "ll"}):
                await served.http.post("/v1/completions", json=body)
            async with asyncio.timeout(5):
                while True:
                    reply = await served.http.get("/metrics")
                    if samples_of(reply.text)["hookserve_num_requests_running", ""] == 0:
                        break
                    await asyncio.sleep(0.005)
        assert reply.headers["content-type"].startswith("text/plain")
        assert "_created" not in reply.text
        assert 'model_name="m"' in reply.text
        assert 'engine="0"' in reply.text
        samples = samples_of(reply.text)
        assert samples["hookserve_request_success_total", "length"] == 1
        assert samples["hookserve_request_success_total", "stop"] == 1
        assert samples["hookserve_prompt_tokens_total", ""] == 6
        # What the request with a stop generated ends with the stop.
        assert samples["hookserve_request_generation_tokens_sum", ""] == 5 + 4
        assert samples["hookserve_time_to_first_token_seconds_count", ""] == 2
        assert samples["hookserve_e2e_request_latency_seconds_count", ""] == 2

    asyncio.run(run())


def test_two_servers_in_one_process_do_not_share_metrics(serve_script: Any) -> None:
    async def run() -> None:
        for _ in range(2):
            async with serve_script(say("hello")) as served:
                await served.http.post("/v1/completions", json={"prompt": "abc"})
                samples = samples_of((await served.http.get("/metrics")).text)
                assert samples["hookserve_prompt_tokens_total", ""] == 3

    asyncio.run(run())


def test_a_loggers_broken_metrics_hide_no_others(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with serve_script(say("hello"), plugins=[BrokenMetricsPlugin()]) as served:
            await served.http.post("/v1/completions", json={"prompt": "abc"})
            reply = await served.http.get("/metrics")
            assert reply.status_code == 200
            assert samples_of(reply.text)["hookserve_prompt_tokens_total", ""] == 3

    asyncio.run(run())
    assert any("object:BrokenMetricsPlugin" in r.getMessage() for r in caplog.records)


def test_a_metric_under_a_name_that_is_taken_is_named_and_not_shown(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with serve_script(say("hello"), plugins=[TwinMetricsPlugin()]) as served:
            for _ in range(2):
                text = (await served.http.get("/metrics")).text
                assert text.count("# TYPE hookserve_num_requests_running ") == 1
                samples = samples_of(text)
                assert samples["hookserve_num_requests_running", ""] == 0
                assert samples["mine", ""] == 77

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if "TwinMetrics" in r.getMessage()]
    assert "object:TwinMetricsPlugin" in line
    assert "hookserve_num_requests_running" in line


def test_what_a_logger_does_is_its_plugins_doing(serve_script: Any) -> None:
    KeepingLogger.made.clear()

    async def run() -> None:
        async with serve_script(say("a"), plugins=[TwinMetricsPlugin()]) as served:
            await served.http.post("/v1/completions", json={"prompt": "abc"})

    asyncio.run(run())
    (kept,) = KeepingLogger.made
    ((plugin,), *_) = kept.recorded
    assert plugin.identity == "object:TwinMetricsPlugin"


class TenantPlugin(KeepingPlugin):
    """A logger, and what its owner is told of a request at its end."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    @hookimpl
    def metric_labels(self, request: ApiRequest) -> Any:
        return {"tenant": request.body["metadata"]["tenant"]}

    @hookimpl
    async def request_finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def test_a_logger_is_one_more_and_its_plugin_is_told_of_whole_requests(serve_script: Any) -> None:
    KeepingLogger.made.clear()
    plugin = TenantPlugin()
    body = {"prompt": "abc", "metadata": {"tenant": "blue"}}

    async def run() -> str:
        async with serve_script(say("hello"), plugins=[plugin]) as served:
            headers = {"x-request-id": "r-7"}
            reply = await served.http.post("/v1/completions", json=body, headers=headers)
            assert reply.status_code == 200
            async with asyncio.timeout(5):
                while not plugin.records:
                    await asyncio.sleep(0.001)
            return str((await served.http.get("/metrics")).text)

    page = asyncio.run(run())
    assert samples_of(page)["hookserve_prompt_tokens_total", ""] == 3, "those there are stay"
    (logger,) = KeepingLogger.made
    ended = [each for args in logger.recorded if args[1] for each in args[1].finished_requests]
    assert [(each.num_prompt_tokens, each.finish_reason) for each in ended] == [(3, "length")]
    assert {args[3] for args in logger.recorded} == {0}, "the engine's index"
    (record,) = plugin.records
    assert (record.request_id, record.route) == ("r-7", "/v1/completions")
    assert (record.num_prompt_tokens, record.num_completion_tokens) == (3, 5)
    assert (record.finish_reason, record.labels) == ("length", {"tenant": "blue"})
    assert record.ttft_s is not None and 0 < record.ttft_s <= record.latency_s


def test_a_broken_logger_is_named_once_and_switched_off(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    KeepingLogger.made.clear()
    RaisingLogger.num_calls = 0

    async def run() -> None:
        plugins = [RaisingPlugin(), KeepingPlugin()]
        async with serve_script(say("hello world"), plugins=plugins) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "abc"})
            assert reply.json()["choices"][0]["text"] == "hello world"
            samples = samples_of((await served.http.get("/metrics")).text)
            assert samples["hookserve_prompt_tokens_total", ""] == 3

    asyncio.run(run())
    lines = [r for r in caplog.records if "object:RaisingPlugin" in r.getMessage()]
    assert [line.levelname for line in lines] == ["WARNING", "ERROR"]
    assert RaisingLogger.num_calls == 5
    (kept,) = KeepingLogger.made
    assert len(kept.recorded) == len("hello world")
    scheduler, iteration, mm_cache, engine_index = kept.recorded[0]
    assert scheduler.num_running_reqs == 1
    assert iteration.num_generation_tokens == 1
    assert (mm_cache, engine_index) == (None, 0)


def test_a_logger_that_cannot_be_built_puts_its_plugin_out(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a"), plugins=[UnbuildablePlugin()]) as served:
            reply = await served.http.get("/v1/plugins")
        (report,) = [
            each
            for each in reply.json()["processes"]["front"]
            if each["identity"] == "object:UnbuildablePlugin"
        ]
        assert report["state"] == "out"
        assert "SystemExit" in report["error"]

    asyncio.run(run())


def test_plugins_of_every_process(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            reply = (await served.http.get("/v1/plugins")).json()
        assert reply["processes"]["engine"] == []
        assert reply["roles"] == {"front": ["front"], "engine": ["engine", "worker"]}
        assert reply["pids"] == {"front": os.getpid(), "engine": 1}
        assert reply["unanswered"] == {}
        found = {each["identity"]: each["state"] for each in reply["processes"]["front"]}
        assert found["hookserve:builtin:endpoints"] == "active"
        assert found["hookserve:builtin:executors"] == "other role"

    asyncio.run(run())
