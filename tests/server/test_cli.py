"""The program's entry: words in, exit code and one sentence out, and nothing heavy imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import clean_environment
from hookserve.engine.errors import ConfigError, UsageError
from hookserve.hookspecs.errors import PluginError
from hookserve.server import command_run
from hookserve.server.arguments import Parser, normalize
from hookserve.server.cli import VERBS, main
from hookserve.server.cli_reference import cli_reference
from hookserve.server.settings import GROUPS, Settings, all_specs, resolve_settings
from plugin_folder import install_plugin

HEAVY = ("torch", "starlette", "uvicorn", "tokenizers", "jinja2", "transformers", "numpy")


def given(*words: str) -> dict[str, Any]:
    parser = Parser()
    command_run.add_arguments(parser)
    return command_run.given_flags(parser.parse_args(normalize(words)))


# -- words -------------------------------------------------------------------------------------


def test_underscores_are_hyphens_in_names_only() -> None:
    words = (
        "--max_num_seqs=4",
        "--served_model_name",
        "my_model",
        "--hf-overrides.rope_theta",
        "9",
    )
    assert given(*words) == {
        "max_num_seqs": "4",
        "served_model_name": ["my_model"],
        "hf_overrides": ['{"rope_theta": 9}'],
    }


def test_a_json_key_with_dots_nests() -> None:
    found = given("--additional_config.a.b_c=x", "--additional-config.a.d", "[1]")
    assert found["additional_config"] == ['{"a": {"b_c": "x"}}', '{"a": {"d": [1]}}']


@pytest.mark.checklist(75)
def test_a_json_key_with_a_plus_makes_a_list_longer() -> None:
    words = ["--compilation-config", '{"custom_ops": ["none"]}', "-cc.custom_ops+=+rms_norm"]
    words += ["--compilation_config.custom_ops+", "+silu_and_mul,-rotary_embedding"]
    words += ["--additional-config.a.b+", '[1, "x"]']
    resolved = resolve_settings(given(*words), environ={})
    assert resolved.engine_args.compilation_config == {
        "custom_ops": ["none", "+rms_norm", "+silu_and_mul", "-rotary_embedding"]
    }
    assert resolved.engine_args.additional_config == {"a": {"b": [1, "x"]}}


def test_model_may_stand_first_last_or_as_a_flag() -> None:
    for words in (("m", "--port", "1"), ("--port", "1", "m"), ("--model", "m", "--port=1")):
        assert given(*words) == {"model": "m", "port": "1"}
    assert given("m", "--model", "m") == {"model": "m"}
    with pytest.raises(UsageError, match="differ"):
        given("m", "--model", "n")


def test_a_model_that_a_list_of_names_took_is_told(tmp_path: Path) -> None:
    assert given("m", "--served-model-name", "a", "b")["served_model_name"] == ["a", "b"]
    with pytest.raises(UsageError, match="--served-model-name took"):
        given("--served-model-name", "a", str(tmp_path))


def test_a_switch_has_both_forms() -> None:
    assert given("--enforce-eager") == {"enforce_eager": True}
    assert given("--no-enforce-eager") == {"enforce_eager": False}
    assert given("--no-enable-prefix-caching") == {"enable_prefix_caching": False}
    assert given("--no-plugins") == {"no_plugins": True}


# -- exit codes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--max-num-sequences", "4"], "'--max-num-seqs'"),
        (["run", "--port", "high"], "--port 'high'"),
        (["run", "--port"], "expected one argument"),
        (["run", "a", "b"], "unexpected argument 'b'"),
        (["run", "--enable-lora"], "--enable-lora is refused, because"),
        (["run", "--tensor-parallel-siz", "1"], "'--tensor-parallel-size'"),
        (["doctor"], "invalid choice: 'doctor'"),
        (["plugins", "check"], "invalid choice: 'check'"),
        (["plugins", "bisect", "true"], "'true'; a command is given behind '--'"),
        (["bench", "--workloads", "solo"], "unknown workload 'solo'"),
        (["chat", "--url", "ftp://x"], "expected a URL"),
        (["chat", "--url", "http://x", "--dtype", "float32"], "--dtype shapes a server"),
        ([], "VERB"),
    ],
)
def test_a_usage_error_is_one_sentence_and_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line and "error:" in line


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no good"), 78), (PluginError("a:b:c", "run", "no good"), 78)],
)
def test_an_operators_error_is_one_sentence_and_its_code(
    error: Exception,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(settings: Settings) -> int:
        raise error

    monkeypatch.setattr(command_run, "serve_model", fail)
    monkeypatch.setattr(command_run, "start_logging", lambda settings: None)
    assert main(["run"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"server run: error: {error}"


def test_what_serving_answers_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_run, "serve_model", lambda settings: 70)
    monkeypatch.setattr(command_run, "start_logging", lambda settings: None)
    assert main(["run"]) == 70


def test_sigterm_before_there_is_a_server_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[bool] = []

    def load(settings: Settings) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            return 0
        finally:
            closed.append(True)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command_run, "serve_model", load)
    monkeypatch.setattr(command_run, "start_logging", lambda settings: None)
    assert main(["run"]) == 143
    assert closed == [True]
    assert signal.getsignal(signal.SIGTERM) == before
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Settings) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(command_run, "serve_model", fail)
    monkeypatch.setattr(command_run, "start_logging", lambda settings: None)
    with pytest.raises(RuntimeError):
        main(["run"])


# -- help --------------------------------------------------------------------------------------


def test_help_shows_every_group_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for group in GROUPS:
        assert f"\n{group}:\n" in text
    for spec in all_specs():
        shown = f"--no-{spec.key}" if spec.default is True else spec.flag
        assert f"  {shown}" in text, spec.name


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"server {verb}" in capsys.readouterr().out


def test_version_names_both_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert "hookserve 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["chat", "--help"],
        ["bench", "--help"],
        ["plugins", "list"],
        ["plugins", "list", "--json"],
    ],
)
def test_a_quick_verb_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import json, sys\n"
        "from hookserve.server.cli import main\n"
        "code = main(json.loads(sys.argv[1]))\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert code == 0 and not loaded, (code, loaded)\n"
        "plugins = [n for n in sys.modules if n.startswith('hookserve.plugins_builtin.')]\n"
        "assert not plugins, plugins\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, json.dumps(words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


SLOW_AND_BROKEN = """
import time
open(__file__ + ".imported", "w").close()
time.sleep(3)
raise RuntimeError("imported")
"""


def test_nobody_waits_for_a_plugin_to_be_told_about_the_program(tmp_path: Path) -> None:
    """Nor fails with one: what tells of the program imports no plugin, and no torch."""
    install_plugin(tmp_path, "slow-dist", {"slow_plugin": SLOW_AND_BROKEN})
    environment = clean_environment({"PYTHONPATH": str(tmp_path)})
    module = [sys.executable, "-P", "-X", "importtime", "-m", "hookserve.server.cli"]
    for words, told in (
        (["--version"], "hookserve 0."),
        (["--help"], "usage: server"),
        (["run", "--help"], "--tensor-parallel-size"),
        (["plugins", "list"], "slow-dist:hookserve:slow_plugin"),
    ):
        done = subprocess.run([*module, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert told in done.stdout
        imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
        assert "hookserve.server" in imported and "torch" not in imported, words
    assert not list(tmp_path.rglob("*.imported"))


def test_the_page_of_the_command_line_is_up_to_date(source_root: Path) -> None:
    page = (source_root / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == cli_reference(), "run: python -m hookserve.server.cli_reference > docs/cli.md"
