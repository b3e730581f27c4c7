"""``server plugins list``: what is known without a load, what a load tells, and what is kept."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs.settings import PluginSettings
from hookserve.server.load_cache import (
    FILE_NAME,
    LoadResult,
    file_stamp,
    read_results,
    write_results,
)
from hookserve.server.plugin_probe import probe_plugins
from hookserve.server.plugin_table import PluginRow, format_table, summarize
from plugin_folder import install_plugin

GOOD = """
import os
open(os.environ["TRACE"], "a").write("imported\\n")
from hookserve.hookspecs import ModelEntry, hookimpl

@hookimpl
def register_model():
    return ModelEntry("GoodForCausalLM", "good_plugin.model:Good")
"""
BROKEN = "raise ValueError('cannot be imported')"
TOML = 'api = ">=1,<2"\nroles = ["front", "worker"]\nhooks = ["register_model"]\n'


class Site:
    """A folder of installed plugins, and the command line run with it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "site"
        self.trace = root / "trace"
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HOOKSERVE_")},
            "PYTHONPATH": str(self.folder),
            "HOOKSERVE_CACHE": str(root / "cache"),
            "TRACE": str(self.trace),
        }
        self.folder.mkdir()

    def list(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "hookserve.server.cli", "plugins", "list", *words]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done

    def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        found = json.loads(self.list("--json", *words).stdout)
        return {row["identity"]: row for row in found if not row["builtin"]}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    install_plugin(made.folder, "good-plugin", {"good_plugin": GOOD}, toml=TOML)
    install_plugin(made.folder, "bad-plugin", {"bad_plugin": BROKEN})
    return made


GOOD_ID, BAD_ID = "good-plugin:hookserve:good_plugin", "bad-plugin:hookserve:bad_plugin"


def test_a_list_tells_what_the_files_tell_and_imports_nothing(site: Site) -> None:
    rows = site.rows()
    assert rows[GOOD_ID] == {
        "identity": GOOD_ID,
        "version": "1.0",
        "file": str(site.folder / "good_plugin" / "__init__.py"),
        "state": "found",
        "roles": ["front", "worker"],
        "hooks": ["register_model"],
        "last_load": None,
        "builtin": False,
    }
    assert rows[BAD_ID]["hooks"] is None
    assert not site.trace.exists()


def test_a_load_reports_each_plugin_and_is_remembered(site: Site) -> None:
    rows = site.rows("--load")
    assert rows[GOOD_ID]["state"] == "active"
    assert rows[GOOD_ID]["hooks"] == ["register_model"]
    assert rows[BAD_ID]["state"].startswith("out at stage 'import'")
    assert "cannot be imported" in rows[BAD_ID]["state"]
    assert site.trace.read_text() == "imported\n"
    later = site.rows()
    assert later[GOOD_ID]["last_load"]["state"] == "active"
    assert later[BAD_ID]["last_load"]["stage"] == "import"
    assert site.trace.read_text() == "imported\n"


def test_what_was_remembered_is_forgotten_when_the_file_changes(site: Site) -> None:
    site.rows("--load")
    with (site.folder / "bad_plugin" / "__init__.py").open("a") as file:
        file.write("\n# changed\n")
    later = site.rows()
    assert later[BAD_ID]["last_load"] is None
    assert later[GOOD_ID]["last_load"] is not None


def test_the_lists_of_the_operator_show(site: Site) -> None:
    assert site.rows("--disable-plugins", "good_plugin")[GOOD_ID]["state"] == (
        "blocked by --disable-plugins"
    )
    assert site.rows("--plugins", "")[BAD_ID]["state"] == "blocked by --plugins"
    done = site.list("--plugins", "god_plugin", code=78)
    assert "god_plugin" in done.stderr and "good_plugin" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_table_has_a_line_for_each(site: Site) -> None:
    lines = site.list().stdout.splitlines()
    assert lines[0].split() == ["identity", "version", "state", "roles", "hooks", "last", "load"]
    assert lines[1].startswith(BAD_ID) and "not stated" in lines[1]
    assert any(line.startswith("hookserve:builtin:") for line in lines[3:])


def test_a_plugin_that_prints_or_exits_does_not_spoil_the_answer(tmp_path: Path) -> None:
    site = Site(tmp_path)
    install_plugin(site.folder, "loud", {"loud": "print('[')\nimport sys\nsys.exit(3)"})
    rows = site.rows("--load")
    assert "SystemExit" in rows["loud:hookserve:loud"]["state"]


def test_a_plugin_that_ends_the_process_is_told(tmp_path: Path) -> None:
    site = Site(tmp_path)
    install_plugin(site.folder, "gone", {"gone": "import os\nos._exit(9)"})
    done = site.list("--load", code=78)
    assert "exit code 9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_load_has_a_deadline(tmp_path: Path) -> None:
    file = tmp_path / "sleeper.py"
    file.write_text("import time\ntime.sleep(600)\n")
    from hookserve.engine.errors import ConfigError

    with pytest.raises(ConfigError, match="more than 1 s"):
        probe_plugins(PluginSettings(files=(str(file),), startup_hook_timeout_s=1))


def test_a_long_account_is_told_whole(tmp_path: Path) -> None:
    file = tmp_path / "wordy.py"
    file.write_text("raise ValueError('x' * 200_000)\n")
    probe = probe_plugins(PluginSettings(files=(str(file),), startup_hook_timeout_s=20))
    (report,) = (report for report in probe.reports if report.identity == "file:wordy")
    assert report.error == f"ValueError: {'x' * 200_000}"


def test_a_list_of_twenty_plugins_imports_none_and_costs_little(tmp_path: Path) -> None:
    """Compared with starting Python for the same settings, so that a slow machine moves both, and
    in time of the processor, so that a busy one moves neither."""
    site = Site(tmp_path)
    toml = 'api = ">=1,<2"\nroles = ["front", "cli"]\nhooks = ["shutdown"]\ncommands = ["v"]\n'
    for number in range(20):
        name = f"many_{number}"
        install_plugin(site.folder, f"many-{number}", {name: GOOD}, toml=toml)

    def cost_s(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-P", *command], env=site.environ, stdout=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = min(cost_s("-c", "import hookserve.server.settings") for _ in range(3))
    for words in (["plugins", "list", "--json"], ["--help"]):
        cost = min(cost_s("-m", "hookserve.server.cli", *words) for _ in range(3))
        assert cost < 3 * bare, (words, cost, bare)
    assert len(site.rows()) == 20
    assert not site.trace.exists()


# -- the cache ---------------------------------------------------------------------------------


def test_results_are_merged_and_a_broken_cache_is_no_fault(tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "cache")
    one, two = LoadResult("s", "active", load_ms=3.0), LoadResult("t", "out", "import", "no")
    write_results(folder, {"a": one})
    write_results(folder, {"b": two})
    assert read_results(folder) == {"a": one, "b": two}
    assert one.text() == "ok, 3 ms"
    assert two.text() == "failed at stage 'import': no"
    (tmp_path / "deep" / "cache" / "plugin-loads.json").write_text("{")
    assert read_results(folder) == {}
    blocked = tmp_path / "file"
    blocked.write_text("")
    write_results(str(blocked), {"a": one})
    write_results(folder, {"c\udc80": one})  # as of a file whose name is no text
    assert os.listdir(folder) == [FILE_NAME]
    os.remove(f"{folder}/{FILE_NAME}")
    os.mkfifo(f"{folder}/{FILE_NAME}")
    assert read_results(folder) == {}


def test_a_stamp_changes_with_version_and_content(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("a")
    first = file_stamp("1", str(file))
    assert file_stamp("2", str(file)) != first
    file.write_text("ab")
    assert file_stamp("1", str(file)) != first
    assert file_stamp("1", str(tmp_path / "gone")) == file_stamp("1", None)


# -- texts -------------------------------------------------------------------------------------


def test_third_parties_stand_before_built_ins_and_long_errors_are_cut() -> None:
    def row(identity: str, state: str, builtin: bool) -> PluginRow:
        return PluginRow(
            identity=identity,
            version=None,
            file=None,
            state=state,
            roles=["front"],
            hooks=[],
            last_load=None,
            builtin=builtin,
        )

    lines = format_table([row("b:b:b", "active", True), row("t:t:t", "x" * 500, False)])
    first, second = lines.splitlines()[1:]
    assert first.startswith("t:t:t") and second.startswith("b:b:b")
    assert len(first) < 200 and "..." in first


def test_the_summary_names_third_parties_and_what_is_wrong(tmp_path: Path) -> None:
    from hookserve.hookspecs import create_plugin_manager

    good, bad = tmp_path / "goodone.py", tmp_path / "badone.py"
    good.write_text(
        "from hookserve.hookspecs import Named, hookimpl\n"
        "@hookimpl\n"
        "def model_source():\n    return Named('local', 'goodone:Source')\n"
    )
    bad.write_text(BROKEN)
    settings = PluginSettings(files=(str(good), str(bad)))
    line = summarize(create_plugin_manager(["front"], settings).describe())
    assert "file:goodone" in line
    assert "file:badone (out at stage 'import'" in line
    assert "file:goodone overrides model_source 'local'" in line
    assert "built in" in line
