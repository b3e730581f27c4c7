"""What plugins add to the command line: verbs of their own, and options of ``server run``."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import clean_environment
from hookserve.engine.errors import UsageError
from hookserve.hookspecs.errors import PluginConflictError, PluginError, RequiredPluginError
from hookserve.server import command_run
from hookserve.server.cli import main
from hookserve.server.settings import Settings
from plugin_folder import install_plugin

ROLES = 'roles = ["cli", "front"]\n'

COUNTER = """
import os, sys
open(os.environ["TRACE"], "a").write("imported\\n")
from hookserve.hookspecs import Command, hookimpl

@hookimpl
def cli_command():
    return [
        Command("count", "counter:count", help="count words"),
        Command("fail", "counter:fail"),
        Command("leave", "counter:leave"),
        Command("odd", "counter:odd"),
        Command("run", "counter:count"),
    ]

def count(words):
    print("counted", words)
    return len(words)

def fail(words):
    raise RuntimeError("no counting today")

def leave(words):
    sys.exit(5)

def odd(words):
    return "three"
"""


class CommandLine:
    """The program in a process, with plugins installed in a folder."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "site"
        self.folder.mkdir()
        self.trace = root / "trace"
        own = {"HOOKSERVE_CACHE": str(root / "cache"), "TRACE": str(self.trace)}
        self.environ = clean_environment({"PYTHONPATH": str(self.folder), **own})

    def run(self, *words: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hookserve.server.cli", *words],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    toml = 'roles = ["cli"]\ncommands = ["count", "run"]\n'
    install_plugin(made.folder, "counter-dist", {"counter": COUNTER}, toml=toml)
    return made


# -- verbs -------------------------------------------------------------------------------------


def test_help_lists_the_verbs_that_the_files_state_and_imports_nobody(line: CommandLine) -> None:
    out = line.run("--help").stdout
    assert "a verb of the plugin counter-dist:hookserve:counter" in " ".join(out.split())
    assert sum(text.split()[:1] == ["run"] for text in out.splitlines()) == 1
    assert not line.trace.exists()


def test_a_verb_gets_the_words_behind_it_and_its_answer_is_the_exit_code(
    line: CommandLine,
) -> None:
    done = line.run("count", "a", "--help", "--port", code=3)
    assert done.stdout == "counted ['a', '--help', '--port']\n"
    assert "its verb 'run' is the program's own" in done.stderr
    assert line.trace.read_text() == "imported\n"


def test_what_a_verb_raises_or_returns_is_told_with_its_owner(line: CommandLine) -> None:
    assert (
        "plugin counter-dist:hookserve:counter: verb 'fail' raised RuntimeError: no counting today"
    ) in line.run("fail", code=1).stderr
    line.run("leave", code=5)
    assert "expected an exit code or None" in line.run("odd", code=1).stderr


def test_a_programs_own_verb_imports_no_plugin(line: CommandLine) -> None:
    line.run("plugins", "list")
    line.run("bench", "--help")
    assert not line.trace.exists()


def test_an_unknown_verb_names_those_of_plugins_too(line: CommandLine) -> None:
    assert "choose from run, chat, bench, plugins, count" in line.run("cuont", code=2).stderr


def test_a_blocked_plugin_has_no_verb(line: CommandLine) -> None:
    error = line.run("count", code=2, HOOKSERVE_DISABLE_PLUGINS="counter").stderr
    assert "invalid choice: 'count'" in error
    assert not line.trace.exists()


# -- options -----------------------------------------------------------------------------------


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Installs plugins whose hook ``cli_options`` has the given bodies, reads a command line of
    ``server run``, and gives the settings that would be served."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("HOOKSERVE_CACHE", str(tmp_path / "cache"))
    seen: list[Settings] = []
    monkeypatch.setattr(command_run, "serve_model", lambda settings: seen.append(settings) or 0)
    monkeypatch.setattr(command_run, "start_logging", lambda settings: None)

    def run(plugins: dict[str, str], *words: str) -> Any:
        for name, body in plugins.items():
            source = (
                "from hookserve.hookspecs import hookimpl\n@hookimpl\ndef cli_options(parser):\n"
            )
            source += "".join(f"    {line}\n" for line in body.splitlines())
            install_plugin(folder, f"{name}-dist", {name: source}, toml=ROLES)
        importlib.invalidate_caches()
        seen.clear()
        code = main(["run", *words])
        output = capsys.readouterr()
        return (seen[0] if seen else code), output.out + output.err

    yield run
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


OPTIONS = """parser.add_argument("--opt_tenants", type=int, default="4", help="%(default)s at most")
group = parser.add_argument_group("more")
group.add_argument("--opt-on", action="store_true")
group.add_argument("--port-name", dest="port")"""
IDENTITY = "opts-dist:hookserve:opts"
CHANGES = "import os; os.environ['LEFT_BEHIND'] = '1'"


def test_values_land_in_the_plugins_own_section_under_the_key_that_the_operator_chose(
    served: Any,
) -> None:
    words = ("--opt-tenants", "7", "--port-name", "x", "--port", "9")
    settings, _ = served({"opts": OPTIONS}, *words)
    assert settings.plugins.config == {IDENTITY: {"opt_tenants": 7, "opt_on": False, "port": "x"}}
    assert settings.server.port == 9
    assert str(settings.origins["plugin_config"]) == "flag --opt-tenants, --port-name"
    section = '{"opts": {"opt_tenants": 1, "other": 2}}'
    settings, _ = served({}, "--plugin-config", section, "--opt-on")
    assert settings.plugins.config == {"opts": {"opt_tenants": 1, "other": 2, "opt_on": True}}
    settings, _ = served({}, "--plugin-config", section, "--opt_tenants=3")
    assert settings.plugins.config["opts"]["opt_tenants"] == 3
    assert settings.plugins.denied == ()


def test_an_option_that_nobody_gave_and_without_a_default_makes_no_section(served: Any) -> None:
    plugins = {"opts": "parser.add_argument('--opt-tenants', type=int)"}
    settings, _ = served(plugins)
    assert settings.plugins.config == {} and str(settings.origins["plugin_config"]) == "default"
    settings, _ = served({}, "--plugin-config", '{"opts": {}}')
    assert settings.plugins.config == {"opts": {}}


def test_the_help_of_run_shows_them_with_their_plugin(served: Any) -> None:
    code, text = served({"opts": OPTIONS}, "--help")
    assert code == 0
    assert f"Plugin {IDENTITY}:" in text
    assert "elsewhere keys of the plugin's section of --plugin-config" in " ".join(text.split())
    assert "--opt-tenants OPT_TENANTS" in text and "4 at most" in " ".join(text.split())


def test_the_help_of_run_says_whose_options_it_does_not_show(
    served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    code, text = served({"wrong": "parser.add_argument('--port')", "opts": OPTIONS}, "--help")
    assert code == 0
    assert "The options of wrong-dist:hookserve:wrong are not shown" in " ".join(text.split())
    assert "--opt-tenants OPT_TENANTS" in text
    assert caplog.text == "", "there is no log yet"


def test_a_wrong_value_is_a_usage_error(served: Any) -> None:
    code, text = served({"opts": OPTIONS}, "--opt-tenants", "many")
    assert code == 2
    assert "argument --opt-tenants: invalid int value: 'many'" in text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("parser.add_argument('--port')", "--port, which is an option of the program itself"),
        ("parser.add_argument('-h')", "-h, which is an option of the program itself"),
        ("parser.add_argument('word')", "the positional argument 'word'"),
        ("parser.add_argument('--x'); parser.add_argument('--x')", "--x twice"),
        ("parser.add_argument('--x', help='at 100%')", "--x, whose help or default fails"),
        (f"{CHANGES}; parser.add_argument('--port')", "--port, which is an option"),
        ("parser.add_argument('--x'); raise RuntimeError('half-way')", "half-way"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_plugin_that_adds_what_cannot_be_an_option_is_out_with_all_that_it_added(
    served: Any, body: str, why: str
) -> None:
    plugins = {"good": "parser.add_argument('--good-option')", "wrong": body}
    settings, _ = served(plugins, "--good-option", "1")
    (denied,) = settings.plugins.denied
    assert (denied.identity, denied.process) == ("wrong-dist:hookserve:wrong", "cli")
    assert why in denied.error
    assert "LEFT_BEHIND" not in os.environ, "what it changed is undone"
    assert settings.plugins.config == {"good-dist:hookserve:good": {"good_option": "1"}}
    code, text = served({}, "--x", "1")
    assert code == 2 and "unknown flag --x" in text


def test_a_required_plugin_that_cannot_add_its_options_stops_the_start(served: Any) -> None:
    body = "parser.add_argument('--port')"
    code, text = served({"wrong": body}, "--require-plugins", "wrong")
    assert code == RequiredPluginError.exit_code == 78
    assert "wrong-dist:hookserve:wrong" in text and "it is required" in text


def test_two_plugins_with_one_option_are_a_conflict_that_names_both(served: Any) -> None:
    body = "parser.add_argument('--shared')"
    code, text = served({"one": body, "two": body})
    assert code == PluginConflictError.exit_code == 78
    assert "one-dist:hookserve:one" in text and "two-dist:hookserve:two" in text
    assert "--shared" in text
    settings, _ = served({}, "--disable-plugins", "two", "--shared", "x")
    assert settings.plugins.config == {"one-dist:hookserve:one": {"shared": "x"}}


def test_what_excludes_itself_still_does(served: Any) -> None:
    body = """pair = parser.add_mutually_exclusive_group()
pair.add_argument('--this')
pair.add_argument('--that')"""
    code, text = served({"pair": body}, "--this", "1", "--that", "2")
    assert code == 2 and "not allowed with argument --this" in text


def test_a_value_that_cannot_be_sent_to_other_processes_is_told(served: Any) -> None:
    body = "import pathlib; parser.add_argument('--folder', type=pathlib.Path)"
    code, text = served({"paths": body}, "--folder", "/x")
    assert code == PluginError.exit_code
    assert "--folder gives a PosixPath" in text and "paths-dist:hookserve:paths" in text


def test_a_type_that_fails_is_its_plugins_failure(served: Any) -> None:
    body = "parser.add_argument('--odd', type=lambda text: {}[text])"
    code, text = served({"odd": body}, "--odd", "1")
    assert code == PluginError.exit_code
    assert "odd-dist:hookserve:odd" in text and "KeyError" in text


def test_a_plugin_without_the_role_cli_is_not_asked_and_is_told(
    served: Any, tmp_path: Path
) -> None:
    from hookserve.hookspecs import create_plugin_manager

    source = (
        "from hookserve.hookspecs import hookimpl\n"
        "@hookimpl\ndef cli_options(parser):\n    parser.add_argument('--late')\n"
    )
    install_plugin(tmp_path / "site", "late-dist", {"late": source})
    assert served({}, "--late", "1")[0] == UsageError.exit_code
    reports = create_plugin_manager(["front"]).describe()
    (late,) = [report for report in reports if report.name == "late"]
    assert any("cli_options is never called: it runs in cli" in line for line in late.warnings)
