"""Methods that plugins add to the workers: several at once, exported by their mark alone, and
refused with both owners where a name is taken. The workers here have no torch and no model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch

from fake_engine import make_config
from hookserve.engine.errors import ConfigError, WorkerError, WorkerPluginsError
from hookserve.engine.executor import Executor, UniProcExecutor
from hookserve.engine.multiproc_executor import MultiprocExecutor
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import (
    HostError,
    PluginConflictError,
    PluginSettings,
    RequiredPluginError,
    UnknownNameError,
    bootstrap,
    worker_method,
)
from stub_worker import StubWorker

SUPPORT = Path(__file__).parents[1] / "support"
HEAD = "from hookserve.hookspecs import Named, hookimpl, running, worker_method\n"
LOOKING = (
    HEAD
    + """
class Looking:
    unit = 10

    @worker_method
    def look(self, value):
        return [self._scaled(), value, running().identity]

    @worker_method
    def stumble(self):
        raise LookupError("nothing to see")

    def hidden(self):
        return "secret"

    def _scaled(self):
        return self.rank * self.unit


@hookimpl
def worker_extension():
    return Named("looking", "looking:Looking")
"""
)
DOUBLING = (
    HEAD
    + """
class Doubling:
    @staticmethod
    @worker_method
    def double(value):
        return value + value


@hookimpl
def worker_extension():
    return Named("doubling", "doubling:Doubling")
"""
)


def adding(plugin: str, body: str, base: str = "") -> str:
    """A plugin whose one extension has this body."""
    return (
        f"{HEAD}from stub_worker import StubWorker\nclass Own{base}:\n{body}\n"
        "    @worker_method\n"
        f"    def of_{plugin}(self): return 1\n"
        f"@hookimpl\ndef worker_extension(): return Named('{plugin}', '{plugin}:Own')\n"
    )


Make = Callable[..., Any]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """``make(ranks, asked, plugin sources by name)``: an executor over stub workers."""
    paths = [str(SUPPORT), str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.syspath_prepend(tmp_path)
    made: list[Any] = []
    names: set[str] = set()

    def start(
        ranks: int = 1, asked: str = "", settings: dict[str, Any] | None = None, **plugins: str
    ) -> Executor:
        names.update(plugins)
        for name, source in plugins.items():
            (tmp_path / f"{name}.py").write_text(source)
        files = tuple(str(tmp_path / f"{name}.py") for name in plugins)
        roles = {"engine"} if ranks > 1 else {"engine", "worker"}
        host = bootstrap(roles, PluginSettings(files=files, allow=(), **(settings or {})))
        made.append(host)
        config = make_config(worker_cls="stub_worker:StubWorker")
        parallel = msgspec.structs.replace(
            config.parallel, tensor_parallel_size=ranks, worker_extension_cls=asked
        )
        config = msgspec.structs.replace(config, parallel=parallel)
        kind = MultiprocExecutor if ranks > 1 else UniProcExecutor
        executor = kind(VllmConfig.from_engine_config(config))
        made.append(executor)
        return executor

    yield start
    for each in reversed(made):
        each.shutdown() if isinstance(each, Executor) else each.close()
    for name in names:
        sys.modules.pop(name, None)


def test_several_extensions_are_in_every_worker_at_once(make: Make) -> None:
    executor = make(2, looking=LOOKING, doubling=DOUBLING)
    owner = "file:looking"
    assert executor.collective_rpc("look", args=("x",)) == [[0, "x", owner], [10, "x", owner]]
    assert executor.collective_rpc("double", kwargs={"value": "ab"}) == ["abab", "abab"]
    assert executor.collective_rpc("echo", args=(1,)) == [[1, 0], [1, 1]]
    with pytest.raises(WorkerError, match=r"LookupError: nothing to see.*of plugin file:looking"):
        executor.collective_rpc("stumble")
    with pytest.raises(WorkerError, match=r"'looking' of plugin file:looking does not export 'hid"):
        executor.collective_rpc("hidden")
    tensor = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    grid = numpy.arange(6, dtype=numpy.int16).reshape(2, 3)
    sent = [tensor, grid]
    for answer in executor.collective_rpc("look", args=({"t": tensor, "g": [grid]},)):
        found = [answer[1]["t"], answer[1]["g"][0]]
        assert [type(each) for each in found] == [type(each) for each in sent]
        assert [each.dtype for each in found] == [each.dtype for each in sent]
        assert [each.tolist() for each in found] == [each.tolist() for each in sent]
    for doubled in executor.collective_rpc("double", args=(grid,)):
        assert doubled.tolist() == (2 * grid).tolist()


def test_nobodys_class_is_changed(make: Make) -> None:
    before = dict(vars(StubWorker))
    executor = make(looking=LOOKING, doubling=DOUBLING)
    assert isinstance(executor.worker, StubWorker)
    assert executor.collective_rpc("double", args=(4,)) == [8]
    assert dict(vars(StubWorker)) == before and not hasattr(StubWorker, "double")
    for name in ("hidden", "unit"):
        with pytest.raises(AttributeError, match=f"does not export '{name}'; mark it with @worker"):
            executor.collective_rpc(name)


@pytest.mark.parametrize(
    ("source", "said", "ranks"),
    [
        (adding("mine", "    def echo(self): ..."), "'echo' is an attribute of worker stub_w", 1),
        (adding("mine", "    def echo(self): ..."), "'echo' is an attribute of worker stub_w", 2),
        (adding("mine", "    calls = 3"), "'calls' is an attribute of worker stub_worker:Stub", 1),
        (
            adding("mine", "    lone = 1", "(StubWorker)"),
            "Own is a StubWorker, as is worker",
            1,
        ),
        (adding("mine", "    def __init__(self): ..."), "Own has a constructor, which nobody", 1),
        (adding("mine", "").replace("@worker_method", ""), "Own exports no method; mark it", 1),
        (adding("mine", "").replace("mine:Own", "mine:worker_extension"), "is not a class", 1),
        (adding("mine", "").replace("mine:Own", "nowhere:Own"), "No module named 'nowhere'", 1),
    ],
    ids=[
        "a method",
        "in a rank",
        "an attribute",
        "a worker",
        "a constructor",
        "no mark",
        "no class",
        "no module",
    ],
)
def test_an_extension_that_cannot_be_used_puts_its_plugin_out(
    source: str, said: str, ranks: int, make: Make
) -> None:
    with pytest.raises(WorkerPluginsError) as caught:
        make(ranks, mine=source, looking=LOOKING)
    (failure,) = caught.value.failures
    assert failure.identity == "file:mine"
    assert said in failure.error
    if "worker stub_worker" in failure.error:
        assert "--worker-cls or the platform hookserve:builtin:cpu asked for" in failure.error


def test_the_start_goes_on_without_such_a_plugin(make_fake_llm: Make, tmp_path: Path) -> None:
    (tmp_path / "sour.py").write_text(adding("sour", "    hooks = None"))
    (tmp_path / "sweet.py").write_text(adding("sweet", ""))
    llm = make_fake_llm(plugins=[str(tmp_path / f"{name}.py") for name in ("sour", "sweet")])
    reports = {report.name: report for report in llm.plugins.describe()}
    assert (reports["sour"].state, reports["sweet"].state) == ("out", "active")
    assert "'hooks' is an attribute of worker fake_engine:FakeWorker" in (
        reports["sour"].error or ""
    )
    assert llm.collective_rpc("of_sweet") == [1]
    with pytest.raises(AttributeError, match="of_sour"):
        llm.collective_rpc("of_sour")


def test_one_of_a_plugin_that_must_work_stops_the_start(make: Make) -> None:
    source = adding("mine", "    def echo(self): ...")
    with pytest.raises(RequiredPluginError, match=r"file:mine .*'echo' is an attribute.*required"):
        make(settings={"require": ("mine",)}, mine=source)


def test_two_extensions_with_one_name_stop_the_start_with_both_owners(make: Make) -> None:
    sources = {name: adding(name, "    def shared(self): ...") for name in ("mine", "yours")}
    with pytest.raises(PluginConflictError) as caught:
        make(**sources)
    assert "'mine' of plugin file:mine and worker extension 'yours' of plugin file:yours" in str(
        caught.value
    )
    assert "both have 'shared'" in str(caught.value)


def test_what_two_extensions_inherit_from_one_class_is_no_clash(make: Make, tmp_path: Path) -> None:
    base = f"{HEAD}class Base:\n    @worker_method\n    def common(self): return self.rank + 1\n"
    (tmp_path / "common_base.py").write_text(base)
    sources = {
        name: "from common_base import Base\n" + adding(name, "", "(Base)")
        for name in ("mine", "yours")
    }
    executor = make(**sources)
    assert executor.collective_rpc("common") == [1]
    assert executor.collective_rpc("of_mine") == executor.collective_rpc("of_yours") == [1]


def test_a_class_path_is_an_extension_too(make: Make, tmp_path: Path) -> None:
    source = f"{HEAD}class Own:\n    @worker_method\n    def mine(self): return running() is None\n"
    (tmp_path / "by_path.py").write_text(source)
    executor = make(asked="by_path:Own, looking", looking=LOOKING)
    assert executor.collective_rpc("mine") == [True]
    assert executor.collective_rpc("look", args=(3,)) == [[0, 3, "file:looking"]]


def test_of_a_class_path_without_any_mark_every_public_method_is_meant(
    make: Make, tmp_path: Path
) -> None:
    source = "class Own:\n    unit = 2\n    def mine(self, n): return self._times(n)\n"
    source += "    def _times(self, n): return n * self.unit + self.rank\n"
    (tmp_path / "unmarked.py").write_text(source)
    executor = make(asked="unmarked.Own")
    assert executor.collective_rpc("mine", args=(4,)) == [8]
    for name in ("_times", "unit"):
        with pytest.raises(AttributeError, match=f"does not export '{name}'"):
            executor.collective_rpc(name)


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ("lookin", UnknownNameError, "'lookin' is not registered; did you mean looking"),
        ("nowhere.Own", HostError, "No module named 'nowhere'"),
        ("stub_worker:StubWorker", ConfigError, "StubWorker is a StubWorker, as is worker"),
        ("os:sep", ConfigError, "is not a class"),
        ("types:SimpleNamespace", ConfigError, "SimpleNamespace exports no method"),
    ],
)
def test_one_that_is_asked_for_and_cannot_be_used_stops_the_start(
    asked: str, kind: type[Exception], said: str, make: Make
) -> None:
    with pytest.raises(kind, match=said):
        make(asked=asked, looking=LOOKING)


@pytest.mark.parametrize("what", ["a coroutine", "no function", "a private name"])
def test_only_plain_public_methods_are_exported(what: str) -> None:
    async def later() -> None: ...

    def _mine() -> None: ...

    given: Any = {"a coroutine": later, "no function": staticmethod(len), "a private name": _mine}
    with pytest.raises(TypeError, match="worker_method: "):
        worker_method(given[what])
