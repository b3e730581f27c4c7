"""Hosts made of objects, of distributions on disk, and of built-ins that the tests choose."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import Host, PluginSettings
from hookserve.hookspecs import discovery as discovery_module
from hookserve.hookspecs.crash_mark import CrashMark
from hookserve.hookspecs.plugin import Facts, Plugin

MakeHost = Callable[..., Host]


@pytest.fixture
def builtins(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Plugin]]:
    """What makes the built-ins of this test, anew for each host; empty unless it adds some."""
    chosen: list[Callable[[], Plugin]] = []
    monkeypatch.setattr(discovery_module, "builtin_plugins", lambda: [make() for make in chosen])
    return chosen


@pytest.fixture
def add_builtin(builtins: list[Callable[[], Plugin]]) -> Callable[..., None]:
    def add(name: str, plugin: object, *, essential: bool = False) -> None:
        facts = Facts(essential=essential, roles=frozenset({"front", "engine", "worker", "cli"}))
        builtins.append(
            lambda: Plugin(
                identity=f"hookserve:builtin:{name}",
                name=name,
                group="builtin",
                load=lambda: plugin,
                distribution="hookserve",
                file=f"/builtin/{name}.py",
                facts=facts,
            )
        )

    return add


@pytest.fixture
def make_host(builtins: Any) -> MakeHost:
    """A host apart from ``current``; all roles share the process unless the test says less."""

    def make(
        *objects: object,
        roles: Sequence[str] = ("front", "engine", "worker"),
        strict: bool = True,
        load: bool = True,
        crash_mark: CrashMark | None = None,
        **settings: Any,
    ) -> Host:
        wanted = PluginSettings(**settings)
        return Host(roles, wanted, objects, strict=strict, load=load, crash_mark=crash_mark)

    return make


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on ``sys.path``; what a test imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
