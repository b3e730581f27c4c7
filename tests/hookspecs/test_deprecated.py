"""What is about to go is told to those who use it, and is gone when its time has come."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

import pytest

from hookserve.hookspecs import deprecated as module
from hookserve.hookspecs import hookimpl
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.deprecated import DEPRECATED, Deprecated, past_removal, warn_deprecated
from hookserve.hookspecs.plugin import Plugin
from hookserve.hookspecs.stability import STABILITY, TIERS, tier_of


def item(**changes: Any) -> Deprecated:
    fields = {"name": "--old", "kind": "flag", "since": "0.2", "removal": "0.4"}
    return Deprecated(**{**fields, "instead": "--new", **changes})


def test_nothing_is_past_its_removal() -> None:
    version = importlib.metadata.version("hookserve")
    assert past_removal(DEPRECATED, version) == [], "remove it, or say a later version"


@pytest.mark.parametrize(
    ("version", "is_past"), [("0.3.9", False), ("0.4", True), ("0.4.1", True), ("1.0", True)]
)
def test_an_item_is_past_at_the_version_of_its_removal(version: str, is_past: bool) -> None:
    assert bool(past_removal([item()], version)) is is_past


@pytest.mark.checklist(134)
def test_a_use_is_told_once_for_each_plugin(caplog: pytest.LogCaptureFixture) -> None:
    plugins = [Plugin(f"d:hookserve:{name}", name, "hookserve", lambda: None) for name in "ab"]
    old = item(name="--old-for-one-test")
    text = "the flag --old-for-one-test is deprecated since 0.2 and goes in 0.4; use --new"
    for plugin in [*plugins, *plugins]:
        with enter(plugin):
            warn_deprecated(old)
    warn_deprecated(old)
    assert [record.getMessage() for record in caplog.records] == [
        f"plugin d:hookserve:a: {text}",
        f"plugin d:hookserve:b: {text}",
        text,
    ]


class Watcher:
    """A plugin object with a hook that may change in any release."""

    @hookimpl
    def before_step(self, batch: Any) -> None: ...

    @hookimpl
    def shutdown(self, roles: Any) -> None: ...


def test_an_unstable_hook_is_told_with_its_plugin(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    line = "plugin object:Watcher implements before_step: unstable, may change in any release"
    make_host(Watcher(), roles=["front"])
    assert [r.getMessage() for r in caplog.records].count(line) == 1
    caplog.clear()
    make_host(Watcher(), roles=["worker"])  # whose front has told it
    make_host(Watcher(), roles=["front"], strict=False)  # an inspection
    assert line not in caplog.text


def test_a_hook_that_is_about_to_go_is_told_with_its_plugin(
    make_host: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = item(kind="hook", name="shutdown", instead="process_stopped")
    monkeypatch.setattr(module, "DEPRECATED", (old,))
    make_host(Watcher(), roles=["front"])
    assert f"plugin object:Watcher: {old.text()}" in caplog.messages


def test_a_point_has_one_tier() -> None:
    for kind, tiers in STABILITY.items():
        assert tuple(tiers) == tuple(TIERS)
        names = [name for of_tier in tiers.values() for name in of_tier]
        assert len(set(names)) == len(names), kind
    assert tier_of("hook", "register_model") == "stable"
    with pytest.raises(AssertionError, match="0 times"):
        tier_of("hook", "no_such_hook")
