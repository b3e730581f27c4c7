"""The one host of a process: made once, found again, gone after its end or a failed start."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import (
    HostError,
    ModelEntry,
    PluginSettings,
    RequiredPluginError,
    SettingsDifferError,
    UnknownNameError,
    bootstrap,
    current,
    hookimpl,
)
from hookserve.hookspecs.current_host import look_ahead
from plugin_folder import install_plugin


class Models:
    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry("AForCausalLM", "a.model:A")


class Partly(Models):
    @hookimpl
    def executor(self) -> Any:
        raise RuntimeError("no executor today")


@pytest.fixture
def no_current(builtins: Any) -> Iterator[None]:
    yield
    with contextlib.suppress(HostError):
        current().close()


@pytest.mark.usefixtures("no_current")
def test_equal_settings_give_the_first_host_and_others_are_refused_by_name() -> None:
    with pytest.raises(HostError, match="call bootstrap first"):
        current()
    host = bootstrap(["front", "engine"], PluginSettings(deny=()))
    assert current() is host
    assert bootstrap({"engine", "front"}, PluginSettings()) is host
    with pytest.raises(SettingsDifferError, match=r"roles .*'engine'.* and \['front'\]"):
        bootstrap(["front"], PluginSettings())
    with pytest.raises(SettingsDifferError, match=r"platform None and 'npu'"):
        bootstrap(["front", "engine"], PluginSettings(platform="npu"))
    with pytest.raises(SettingsDifferError, match="plugin objects"):
        bootstrap(["front", "engine"], PluginSettings(), objects=[Models()])
    host.close()
    with pytest.raises(HostError):
        current()
    assert bootstrap(["front"], PluginSettings()) is not host


@pytest.mark.usefixtures("no_current")
def test_a_bootstrap_that_fails_leaves_no_host() -> None:
    with pytest.raises(RequiredPluginError):
        bootstrap(
            ["front", "engine", "worker"],
            PluginSettings(require=("Partly",)),
            objects=[Partly()],
        )
    with pytest.raises(HostError):
        current()


@pytest.mark.usefixtures("no_current")
def test_with_a_configuration_the_process_is_told_at_once() -> None:
    told = []

    class Told:
        @hookimpl
        def process_started(self, roles: Any, config: Any) -> None:
            told.append((sorted(roles), config))

    bootstrap(["worker", "engine"], PluginSettings(), objects=[Told()], config="the config")
    assert told == [(["engine", "worker"], "the config")]


def test_a_registry_of_another_role_is_refused_by_name(make_host: Any) -> None:
    host = make_host(roles=["front"])
    with pytest.raises(UnknownNameError, match=r"'executor' is filled in engine; .* is front"):
        host.registry("executor")
    with pytest.raises(UnknownNameError, match="did you mean model_loader"):
        host.registry("model_loder")


def test_a_host_answers_for_what_plugins_did_under_an_earlier_one(
    site: Path, no_current: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
    import os
    from hookserve.hookspecs import hookimpl

    os.environ["SET_BY_LATE"] = "1"
    MADE = []

    class Late:
        def __init__(self):
            MADE.append(self)

        @hookimpl
        def cli_options(self, parser): ...

        @hookimpl
        def endpoint(self):
            return 3
    """
    toml = 'roles = ["cli", "front"]'
    install_plugin(site, "late-dist", {"late": source}, toml=toml, entries={"late": "late:Late"})
    monkeypatch.delenv("SET_BY_LATE", raising=False)
    first = look_ahead(["cli"], PluginSettings(), only=["cli_options"])
    assert os.environ["SET_BY_LATE"] == "1"
    assert [plugin.state for plugin in first.plugins if plugin.name == "late"] == ["active"]
    host = bootstrap(["front"], PluginSettings())
    (late,) = [report for report in host.describe() if report.name == "late"]
    assert (late.state, late.stage) == ("out", "register")
    assert "SET_BY_LATE" not in os.environ
    assert any("SET_BY_LATE; undone" in line for line in late.warnings)
    assert len(sys.modules["late"].MADE) == 1
    host.close()
    again = bootstrap(["front"], PluginSettings())  # the earlier one is not taken twice
    again.close()
    assert "SET_BY_LATE" not in os.environ


def test_a_host_tells_what_plugins_did_that_are_not_for_its_roles(
    site: Path, no_current: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
    import os
    from hookserve.hookspecs import hookimpl

    os.environ["SET_BY_EARLY"] = "1"

    @hookimpl
    def cli_options(parser): ...
    """
    install_plugin(site, "early-dist", {"early": source}, toml='roles = ["cli"]')
    monkeypatch.delenv("SET_BY_EARLY", raising=False)
    look_ahead(["cli"], PluginSettings(), only=["cli_options"])
    host = bootstrap(["front"], PluginSettings())
    try:
        (early,) = [report for report in host.describe() if report.name == "early"]
        assert early.state == "other role"
        assert early.warnings == ["changed os.environ: SET_BY_EARLY"]
        assert any("early: changed os.environ: SET_BY_EARLY" in line for line in host.warnings)
        assert os.environ["SET_BY_EARLY"] == "1"
    finally:
        host.close()
