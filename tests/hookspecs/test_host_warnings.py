"""What a host tells the operator: overrides, and start-up hooks that take too long."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import ModelEntry, Named, hookimpl
from plugin_folder import install_plugin

HEADER = "from hookserve.hookspecs import ModelEntry, Named, hookimpl\n"


class Models:
    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry("AForCausalLM", "a.model:A")


def test_a_process_behind_the_front_says_only_what_the_front_cannot_know(
    site: Path, make_host: Any, add_builtin: Any
) -> None:
    class Core(Models):
        @hookimpl
        def executor(self) -> Named:
            return Named("uni", "core:Uni")

    add_builtin("core", Core())
    source = HEADER + (
        "@hookimpl\ndef register_model():\n    return ModelEntry('AForCausalLM', 'x.y:A')\n"
        "@hookimpl\ndef executor():\n    return Named('uni', 'x.y:Uni')\n"
    )
    install_plugin(site, "over-dist", {"host_over": source})
    overrides = "over-dist:hookserve:host_over overrides built-in hookserve:builtin:core"
    assert make_host(roles=["front"]).warnings == [f"model 'AForCausalLM': {overrides}"]
    assert make_host(roles=["engine", "worker"]).warnings == [f"executor 'uni': {overrides}"]


def test_an_override_by_code_that_runs_late_is_logged(
    make_host: Any, add_builtin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Late:
        @hookimpl
        def shutdown(self) -> None: ...

    add_builtin("core", Models())
    host = make_host(Late(), roles=["engine", "worker"])
    with host.enter("object:Late"):
        host.registry("model").register("AForCausalLM", "late:A")
    line = "model 'AForCausalLM': object:Late overrides built-in hookserve:builtin:core"
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [line]


def test_a_start_up_hook_that_takes_too_long_is_named_while_it_runs(
    make_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    expected = "plugin object:Slow: hook register_model still runs after 0.01 s"

    def warn(text: str, *args: Any) -> None:
        if text % args == expected:  # whatever else takes so long on a busy machine is named too
            said.set()

    monkeypatch.setattr("hookserve.hookspecs.patience.logger.warning", warn)

    class Slow:
        @hookimpl
        def register_model(self) -> None:
            assert said.wait(10), "nothing was said while the hook ran"

    host = make_host(Slow(), startup_hook_timeout_s=0.01)
    assert host.problems() == []
    assert said.is_set()
