"""How often an engine is started again because of plugins, and without which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookserve.engine import LLM
from hookserve.engine.core import EngineCore
from hookserve.engine.errors import EngineStartError, WorkerError
from hookserve.engine.plugin_restarts import PluginRestarts
from hookserve.hookspecs import Denied, PluginSettings, RequiredPluginError

EARLIER = Denied("d:g:earlier", "front", "run", "no")


class StubHost:
    settings = PluginSettings(denied=(EARLIER,))

    def __init__(self) -> None:
        self.denied: list[Denied] = []

    def failures(self) -> list[Denied]:
        return []

    def deny(self, denied: Denied) -> None:
        self.denied.append(denied)


@pytest.fixture
def host() -> StubHost:
    return StubHost()


@pytest.fixture
def restarts(host: Any) -> PluginRestarts:
    return PluginRestarts(host)


def failed(name: str, stage: str = "run") -> Denied:
    return Denied(f"d:g:{name}", "worker", stage, "no")


def test_what_failed_is_out_at_once(restarts: PluginRestarts, host: StubHost) -> None:
    restarts.decide([failed("a"), failed("b", "import")])
    assert host.denied == [failed("a"), failed("b", "import")]
    assert restarts.denied == [EARLIER, *host.denied]


def test_a_crash_is_forgiven_once_for_each_plugin(restarts: PluginRestarts, host: StubHost) -> None:
    restarts.decide([failed("a", "crash")])
    restarts.decide([failed("b", "crash")])
    assert host.denied == [] and restarts.denied == [EARLIER]
    restarts.decide([failed("a", "crash")])
    assert host.denied == [failed("a", "crash")]
    restarts.decide([failed("b", "crash")])
    assert host.denied == [failed("a", "crash"), failed("b", "crash")]


def test_the_fourth_failure_stops_the_start(restarts: PluginRestarts, host: StubHost) -> None:
    restarts.decide([failed("a", "crash")])
    for name in "abc":
        restarts.decide([failed(name)])
    with pytest.raises(EngineStartError, match=r"started 5 times: d:g:d, d:g:e; ") as caught:
        restarts.decide([failed("e"), failed("d")])
    assert caught.value.exit_code == 78
    assert [each.identity[-1] for each in host.denied] == ["a", "b", "c"]


def test_no_start_is_promised_where_a_required_plugin_ends_it(
    restarts: PluginRestarts,
    host: StubHost,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def deny(denied: Denied) -> None:
        if denied.identity == "d:g:required":
            raise RequiredPluginError(denied.identity, denied.stage, denied.error, "required")

    monkeypatch.setattr(host, "deny", deny)
    with caplog.at_level("WARNING"):
        with pytest.raises(RequiredPluginError):
            restarts.decide([failed("a"), failed("required")])
        assert "starts again" not in caplog.text
        restarts.decide([failed("a")])
    assert "d:g:a failed in the worker process (run: no); the engine starts again" in caplog.text


def test_an_offline_engine_is_made_again_without_what_ends_its_workers(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ends_workers.py"
    file.write_text(
        "from hookserve.hookspecs import hookimpl\n@hookimpl\ndef process_started(): ...\n"
    )
    start, states = EngineCore.start, []

    def start_or_die(config: Any, host: Any) -> Any:
        (plugin,) = [each for each in host.plugins if each.name == "ends_workers"]
        states.append(plugin.state)
        if plugin.state == "active":
            error = WorkerError("worker 0 was killed")
            error.failures = [Denied(plugin.identity, "worker", "crash", "killed")]
            raise error
        return start(config, host)

    monkeypatch.setattr(EngineCore, "start", start_or_die)
    llm = LLM(str(tiny_llama), plugins=[str(file)])
    llm.shutdown()
    assert states == ["active", "active", "out"]
