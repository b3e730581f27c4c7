"""What the log says of plugins while a host is made: each step once, and who is told how loudly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import ModelEntry, create_plugin_manager, hookimpl
from plugin_folder import install_plugin

TAKING = """
from hookserve.hookspecs import ModelEntry, hookimpl

@hookimpl
def register_model():
    return [ModelEntry("AForCausalLM", "mine:A"), ModelEntry("AForCausalLM", "mine:A")]
"""


class BuiltIn:
    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry("AForCausalLM", "a.model:A")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """``lines(word)``: levels and texts of the lines so far that have the word."""
    caplog.set_level(logging.DEBUG, "hookserve")

    def find(word: str) -> list[tuple[str, str]]:
        said = [r for r in caplog.records if r.module in ("startup_log", "registry")]
        found = [(record.levelname, record.getMessage()) for record in said]
        return [(level, line) for level, line in found if word in line]

    return find


@pytest.fixture
def taking(site: Path, add_builtin: Any) -> str:
    """The identity of a plugin that registers one thing twice and takes a built-in's name."""
    add_builtin("shown", BuiltIn())
    install_plugin(site, "taking", {"log_taking": TAKING})
    return "taking:hookserve:log_taking"


def test_each_step_of_a_plugin_is_a_line_in_order(lines: Any, taking: str, make_host: Any) -> None:
    host = make_host(roles=["worker"])
    host.registry("model").get("AForCausalLM")
    steps = [
        f"plugin {taking}: discovered (taking 1.0) in ",
        f"plugins in call order: {taking}, hookserve:builtin:shown",
        f"plugin {taking}: loaded in ",
        f"plugin {taking}: registered model 'AForCausalLM' -> mine:A",
        f"plugin {taking}: registered model 'AForCausalLM' -> mine:A again, which changes nothing",
    ]
    for step, (level, line) in zip(steps, lines(taking), strict=False):
        assert level == "DEBUG"
        assert line.startswith(step)
    (ready,) = [line for level, line in lines(f"plugin {taking}") if level == "INFO"]
    assert ready.startswith(f"plugin {taking}: active, loaded in ")
    assert ready.endswith("; model 'AForCausalLM'; hooks register_model")
    ((level, _),) = lines(
        f"plugin hookserve:builtin:shown: model 'AForCausalLM' is overridden by {taking}"
    )
    assert level == "DEBUG"
    assert not [line for level, line in lines("plugin hookserve:") if level != "DEBUG"]


def test_the_first_use_is_told_once(lines: Any, add_builtin: Any, make_host: Any) -> None:
    class Used:
        @hookimpl
        def register_model(self) -> ModelEntry:
            return ModelEntry("BForCausalLM", "pathlib:Path")

    registry = make_host(Used()).registry("model")
    assert not lines("first use")
    for _ in range(2):
        assert registry.resolve("BForCausalLM") is Path
    assert lines("first use") == [
        ("DEBUG", "plugin object:Used: first use of model 'BForCausalLM'"),
    ]


@pytest.mark.parametrize(("role", "level"), [("front", "WARNING"), ("engine", "INFO")])
def test_a_failure_is_told_loudly_where_nobody_else_tells_it(
    role: str, level: str, lines: Any, site: Path, make_host: Any
) -> None:
    install_plugin(site, "broken", {"log_broken": "raise ValueError('no luck')"})
    install_plugin(site, "unwanted", {"log_unwanted": ""})
    make_host(roles=[role], deny=("log_unwanted",))
    (told,) = [each for each in lines("no luck") if each[0] != "DEBUG"]
    assert told == (
        level,
        "plugin broken:hookserve:log_broken: out at stage 'import': ValueError: no luck",
    )
    blocked = "plugin unwanted:hookserve:log_unwanted: blocked by --disable-plugins"
    assert lines("blocked by") == [("DEBUG", blocked), ("INFO", blocked)]


def test_a_plugin_of_another_role_is_skipped(lines: Any, site: Path, make_host: Any) -> None:
    install_plugin(site, "away", {"log_away": TAKING}, toml='roles = ["worker"]')
    make_host(roles=["front"])
    line = "plugin away:hookserve:log_away: skipped: runs in worker"
    assert [level for level, text in lines(line)] == ["DEBUG"]
    ((_, ready),) = [each for each in lines("log_away") if each[0] == "INFO"]
    assert ready == "plugin away:hookserve:log_away: skipped (runs in worker)"


def test_an_inspection_tells_nothing(lines: Any, taking: str) -> None:
    (report, *_) = create_plugin_manager(["worker"]).describe()
    assert report.identity == taking
    assert lines(taking) == []
