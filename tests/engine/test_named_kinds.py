"""What is chosen by name may be a class path; what is neither is told with what there is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.llm import LLM
from hookserve.hookspecs import (
    Host,
    PluginError,
    PluginSettings,
    UnknownNameError,
    bootstrap,
)

SOURCE = """
from hookserve.engine.executor import UniProcExecutor
from hookserve.engine.model_loader import DefaultModelLoader
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.worker import Worker
from hookserve.hookspecs import worker_method
from hookserve.plugins_builtin.cpu_platform import CpuPlatform

USED = []


class OwnExecutor(UniProcExecutor):
    def _init_executor(self):
        USED.append("executor")
        super()._init_executor()


class OwnLoader(DefaultModelLoader):
    def download_model(self, model_config):
        USED.append("loader")
        super().download_model(model_config)


class OwnWorker(Worker):
    def init_device(self):
        USED.append("worker")
        super().init_device()


class OwnScheduler(Scheduler):
    def __init__(self, *args):
        USED.append("scheduler")
        super().__init__(*args)


class OwnExtension:
    @worker_method
    def used(self):
        return USED


class OwnPlatform(CpuPlatform):
    @classmethod
    def check_and_update_config(cls, config):
        USED.append("platform")
        super().check_and_update_config(config)
"""


@pytest.fixture
def own_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "own_kinds.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: sys.modules["own_kinds"].USED
    sys.modules.pop("own_kinds", None)


@pytest.mark.parametrize("dot", [":", "."])
def test_a_class_path_is_taken_wherever_a_name_is(
    dot: str, own_kinds: Any, tiny_llama: Path, torch_threads: None
) -> None:
    with LLM(
        str(tiny_llama),
        distributed_executor_backend=f"own_kinds{dot}OwnExecutor",
        load_format=f"own_kinds{dot}OwnLoader",
        worker_cls=f"own_kinds{dot}OwnWorker",
        worker_extension_cls=f"own_kinds{dot}OwnExtension",
        scheduler_cls=f"own_kinds{dot}OwnScheduler",
        plugin_settings=PluginSettings(allow=(), platform=f"own_kinds{dot}OwnPlatform"),
    ) as llm:
        assert own_kinds() == ["platform", "executor", "worker", "loader", "scheduler"]
        assert llm.collective_rpc("used") == [own_kinds()]
        device = llm.llm_engine.engine_config.device
        assert device.platform_owner == f"path:own_kinds{dot}OwnPlatform"


@pytest.fixture
def host() -> Iterator[Host]:
    made = bootstrap(["front", "engine", "worker"], PluginSettings(allow=()))
    yield made
    made.close()


def test_an_unknown_name_is_told_with_the_nearest_and_with_who_offers_what(host: Host) -> None:
    with pytest.raises(UnknownNameError) as caught:
        host.registry("executor").resolve("unip")
    text = str(caught.value)
    assert text.startswith("executor 'unip' is not registered; did you mean uni?; registered: ")
    assert "mp of hookserve:builtin:" in text and "uni of hookserve:builtin:" in text
    assert text.endswith("; a class is named by package.module:Class")


def test_a_path_that_leads_nowhere_says_why_and_what_there_is(host: Host) -> None:
    with pytest.raises(PluginError, match=r"No module named 'own_kindz'.*; registered: ") as caught:
        host.registry("model_loader").resolve("own_kindz:Loader")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_platform_path_that_leads_nowhere_stops_the_start(tiny_llama: Path) -> None:
    host = bootstrap(["front"], PluginSettings(allow=(), platform="own_kindz:Platform"))
    try:
        with pytest.raises(PluginError, match="No module named 'own_kindz'"):
            EngineArgs(model=str(tiny_llama)).to_engine_config(host)
    finally:
        host.close()


def test_a_worker_is_named_by_its_path_alone(tiny_llama: Path, torch_threads: None) -> None:
    with pytest.raises(ConfigError, match="worker class: target 'mine' is not of the form"):
        LLM(str(tiny_llama), worker_cls="mine")
