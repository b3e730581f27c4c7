"""The one host of a process: made once, found again, gone after its end or a failed start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
