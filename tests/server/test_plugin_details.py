"""``server plugins show`` and ``hooks``: what a load in a child process tells of plugins."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import PluginSettings, specs
from hookserve.hookspecs.manager import read_specs
from hookserve.server.cli import main
from hookserve.server.load_cache import read_results
from hookserve.server.plugin_probe import probe_plugins
from plugin_folder import install_plugin

WHOLE = """
import msgspec
from hookserve.hookspecs import ModelEntry, hookimpl

class Wanted(msgspec.Struct):
    folder: str
    limit: int = 8
    names: list[str] = []

@hookimpl
def settings_schema():
    return Wanted

@hookimpl
def register_model():
    return ModelEntry("WholeForCausalLM", "whole.model:Whole")

@hookimpl(trylast=True)
def shutdown(roles):
    pass
"""
EARLY = """
from hookserve.hookspecs import hookimpl

@hookimpl
def shutdown(roles):
    pass
"""
BROKEN = """
def deep():
    raise ValueError("cannot be imported")

deep()
"""
WHOLE_ID, BAD_ID = "whole-dist:hookserve:whole", "bad-dist:hookserve:bad"
EARLY_ID = "zz-dist:hookserve:early"


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs ``server plugins ...`` with three plugins installed, and gives what it printed."""
    folder = tmp_path / "site"
    toml = 'api = ">=1,<2"\nroles = ["front", "worker"]\nbefore = ["nobody"]\ncommands = ["w"]\n'
    install_plugin(folder, "whole-dist", {"whole": WHOLE}, toml=toml)
    install_plugin(folder, "zz-dist", {"early": EARLY}, toml='before = ["whole-dist/whole"]\n')
    install_plugin(folder, "bad-dist", {"bad": BROKEN})
    # Found here as in the child; nothing of them is imported in this process.
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("HOOKSERVE_CACHE", str(tmp_path / "cache"))

    def run(*words: str, code: int = 0) -> str:
        assert main(["plugins", *words]) == code
        return capsys.readouterr().out

    return run


def test_show_tells_all_of_a_plugin(tell: Any) -> None:
    config = json.dumps({"whole": {"folder": "/data"}})
    found = json.loads(tell("show", "whole", "--json", "--plugin-config", config))
    report = found["report"]
    assert (report["identity"], report["state"]) == (WHOLE_ID, "active")
    assert (report["api"], report["before"], report["commands"]) == (">=1,<2", ["nobody"], ["w"])
    assert report["config"] == {"folder": "/data"}
    (declared,) = report["declarations"]
    assert (declared["kind"], declared["name"]) == ("model", "WholeForCausalLM")
    assert declared["target"] == "whole.model:Whole"
    assert [hook["name"] for hook in report["hooks"]] == [
        "register_model",
        "settings_schema",
        "shutdown",
    ]
    assert found["settings"] == [
        {"name": "folder", "type": "str", "default": None},
        {"name": "limit", "type": "int", "default": "8"},
        {"name": "names", "type": "list[str]", "default": "list()"},
    ]
    text = tell("show", "whole-dist/whole", "--plugin-config", config)
    assert re.search(r"^state +active$", text, re.MULTILINE)
    assert "model 'WholeForCausalLM' -> whole.model:Whole (active)" in text
    assert "folder: str (must be given)" in text and "limit: int (default 8)" in text
    assert '{"folder": "/data"}' in text


def test_show_keeps_the_traceback_of_the_last_failure(tell: Any, tmp_path: Path) -> None:
    text = tell("show", "bad")
    assert "out at stage 'import': ValueError: cannot be imported" in text
    assert re.search(r'bad/__init__.py", line \d+, in deep', text)
    kept = read_results(str(tmp_path / "cache"))[BAD_ID].traceback
    assert kept is not None and "in deep" in kept
    rows = {row["identity"]: row for row in json.loads(tell("list", "--json"))}
    assert rows[BAD_ID]["last_load"]["traceback"] == kept
    assert "Traceback" not in tell("list")


def test_show_names_the_nearest_plugin(tell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "whale"]) == 78
    assert "no plugin is called 'whale'; did you mean whole" in capsys.readouterr().err


def test_show_tells_what_the_files_tell_where_loading_stopped(tell: Any, tmp_path: Path) -> None:
    end = "import os\nos._exit(9)"
    install_plugin(tmp_path / "site", "end-dist", {"ends": end}, toml='roles = ["front"]')
    found = json.loads(tell("show", "ends", "--json", code=78))
    assert "exit code 9" in found["problem"]
    assert (found["report"]["state"], found["report"]["roles"]) == ("found", ["front"])


def test_hooks_lists_every_hook_with_its_implementations_in_call_order(tell: Any) -> None:
    config = ("--plugin-config", json.dumps({"whole": {"folder": "/data"}}))
    rows = {row["name"]: row for row in json.loads(tell("hooks", "--json", *config))["hooks"]}
    assert list(rows) == list(read_specs(specs))
    for name, info in read_specs(specs).items():
        row = rows[name]
        assert (row["call"], row["failure"]) == (info.call, info.failure)
        assert row["roles"] == list(info.roles)
    called = [one["identity"] for one in rows["shutdown"]["implementations"]]
    assert called == [EARLY_ID, WHOLE_ID]
    assert rows["shutdown"]["tier"] == "stable"
    assert rows["admit"]["implementations"] == []
    text = tell("hooks", *config)
    assert f"  1. {EARLY_ID}  " in text and f"  2. {WHOLE_ID}  " in text
    assert "\nadmit  first; in front; failure: request; provisional\n" in text


def test_what_cannot_be_loaded_at_all_has_no_table(tell: Any, tmp_path: Path) -> None:
    install_plugin(tmp_path / "site", "end-dist", {"ends": "import os\nos._exit(9)"})
    assert tell("hooks", code=78) == ""


def test_a_child_says_which_settings_a_plugin_has(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(WHOLE.replace("folder: str", 'folder: str = "x"'))
    probe = probe_plugins(PluginSettings(files=(str(file),)))
    assert [field.default for field in probe.schemas["file:own"]] == ["'x'", "8", "list()"]
