"""``StatLoggers``: how long one may take, which stand in for which, and what none may change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hookserve.engine import stat_loggers
from hookserve.engine.messages import SchedulerStats
from hookserve.engine.stat_loggers import StatLoggers
from hookserve.hookspecs import Denied, Host, PluginSettings, RequiredPluginError, hookimpl
from hookserve.hookspecs.guard import OBSERVE_FAILURES
from hookserve.plugins_builtin.prometheus_stat_logger import PrometheusStatLogger


class Quiet:
    made = 0

    def __init__(self, config: Any, engine_index: int) -> None:
        type(self).made += 1

    def record(self, *args: Any) -> None: ...

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hanging(released: threading.Event) -> Any:
    """A plugin whose logger is not built before ``released``."""

    class Hanging(Quiet):
        def __init__(self, config: Any, engine_index: int) -> None:
            released.wait(30)

    class HangingPlugin:
        @hookimpl
        def stat_logger(self) -> Any:
            return [Hanging]

    return HangingPlugin()


class QuietPlugin:
    @hookimpl
    def stat_logger(self) -> Any:
        return [Quiet]


def build(host: Host) -> StatLoggers:
    from types import SimpleNamespace

    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="m", max_model_len=10)
    )
    return StatLoggers.build(host, config)


def test_a_constructor_that_does_not_end_puts_its_plugin_out_and_no_other(hanging: Any) -> None:
    settings = PluginSettings(allow=(), startup_hook_timeout_s=0.1)
    host = Host(["front"], settings, [hanging, QuietPlugin()])
    started = time.monotonic()
    loggers = build(host)
    assert time.monotonic() - started < 5
    assert Quiet.made == 1
    owners = [each.owner for each in loggers if not each.plugin.is_builtin]
    assert [owner.rpartition(":")[2] for owner in owners] == ["QuietPlugin"]
    (failure,) = host.failures()
    assert "HangingPlugin" in failure.identity
    assert "Hanging was not built within 0.1 s" in failure.error


def test_it_stops_the_start_where_its_plugin_is_required(hanging: Any) -> None:
    settings = PluginSettings(allow=(), require=("HangingPlugin",), startup_hook_timeout_s=0.1)
    host = Host(["front"], settings, [hanging])
    with pytest.raises(RequiredPluginError, match="not built within"):
        build(host)


def test_nothing_is_logged_for_ever_once_the_loggers_are_shut_down() -> None:
    async def run() -> None:
        loggers = build(Host(["front"], PluginSettings(allow=()), [QuietPlugin()]))
        assert list(loggers)
        logging_on = asyncio.create_task(loggers.log_forever(0.01))
        await asyncio.sleep(0)
        loggers.shutdown()
        await asyncio.wait_for(logging_on, 10)
        assert list(loggers) == []

    asyncio.run(run())


class Labelled(PrometheusStatLogger):
    pass


class LabelledPlugin:
    @hookimpl
    def stat_logger(self) -> Any:
        return [Labelled]


def test_what_gave_way_to_a_plugins_logger_is_back_once_that_plugin_is_out() -> None:
    host = Host(["front"], PluginSettings(allow=()), [LabelledPlugin()])
    loggers = build(host)
    kinds = [type(each.instance) for each in loggers]
    assert Labelled in kinds and PrometheusStatLogger not in kinds
    loggers.drop_inactive()
    assert [type(each.instance) for each in loggers] == kinds

    (owner,) = [each.owner for each in loggers if isinstance(each.instance, Labelled)]
    host.deny(Denied(owner, "engine", "run", "broken there"))
    for _ in range(2):
        loggers.drop_inactive()
        kinds = [type(each.instance) for each in loggers]
        assert kinds.count(PrometheusStatLogger) == 1 and Labelled not in kinds


class Meddler:
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        pass

    def record(self, scheduler: Any, iteration: Any, *more: Any) -> None:
        scheduler.num_running_reqs = 999


class Meddling:
    @hookimpl
    def stat_logger(self) -> Any:
        return [Meddler]


def test_the_servers_own_numbers_are_taken_before_others_may_change_them() -> None:
    loggers = build(Host(["front"], PluginSettings(allow=()), [Meddling()]))
    seen: list[int] = []
    (own,) = [each for each in loggers if isinstance(each.instance, PrometheusStatLogger)]
    own.instance.record = lambda scheduler, *more: seen.append(scheduler.num_running_reqs)
    assert not list(loggers)[-1].plugin.is_builtin

    loggers.record(SchedulerStats(num_running_reqs=1), None)

    assert seen == [1]


def test_one_that_holds_requests_up_is_told_and_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stat_loggers, "MAX_CALL_S", 0.0)
    loggers = build(Host(["front"], PluginSettings(allow=()), [Meddling()]))
    (mine,) = [each for each in loggers if not each.plugin.is_builtin]
    for _ in range(OBSERVE_FAILURES):
        assert not mine.is_off
        loggers.record(SchedulerStats(), None)
    assert mine.is_off
    assert "Meddler failed in record()" in caplog.text
    assert "in which every request waited; it has 0 s" in caplog.text


def test_record_is_called_in_the_form_that_the_logger_takes() -> None:
    given: list[Any] = []

    class Named(Quiet):
        def record(self, stats: Any, iteration: Any, **more: Any) -> None:  # type: ignore[override]
            given.append((stats, iteration, more))

    class Earlier(Quiet):
        def record(self, stats: Any, iteration: Any, engine_idx: int = 7) -> None:  # type: ignore[override]
            given.append((stats, iteration, engine_idx))

    class First(Quiet):
        def record(self, stats: Any, iteration: Any) -> None:  # type: ignore[override]
            given.append((stats, iteration))

    class Now(Quiet):
        def record(self, stats: Any, iteration: Any, mm: Any, index: int) -> None:  # type: ignore[override]
            given.append((stats, iteration, mm, index))

    class Plugin:
        @hookimpl
        def stat_logger(self) -> Any:
            return [Named, Earlier, First, Now]

    loggers = build(Host(["front"], PluginSettings(allow=()), [Plugin()]))
    loggers.record(None, None)
    both = (None, None)
    assert given == [
        (*both, {"mm_cache_stats": None, "engine_idx": 0}),
        (*both, 0),
        both,
        (*both, None, 0),
    ]
