"""How often an engine is started again because of plugins, and without which."""

from __future__ import annotations

from typing import Any

import pytest

from hookserve.engine.errors import EngineStartError
from hookserve.engine.plugin_restarts import PluginRestarts
from hookserve.hookspecs import Denied, PluginSettings

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
