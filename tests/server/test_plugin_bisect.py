"""``server plugins bisect``: the search itself, and runs of real commands."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harness import clean_environment
from hookserve.server.cli import main
from hookserve.server.plugin_bisect import Run, search
from plugin_folder import install_plugin


def bench(*culprits: Iterable[str]) -> Any:
    """A command that fails with all plugins of any of the sets; notes what it was run with."""
    tried: list[tuple[str, ...]] = []

    def fails(enabled: Iterable[str]) -> bool:
        tried.append(tuple(enabled))
        return any(set(culprit) <= set(enabled) for culprit in culprits)

    return fails, tried


PLUGINS = [f"p{number:02}" for number in range(13)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_fewest_plugins_that_fail_together_are_found(size: int) -> None:
    for culprits in itertools.islice(itertools.combinations(PLUGINS, size), 0, None, 7):
        fails, tried = bench(culprits)
        outcome = search(PLUGINS, fails, [])
        assert outcome.found == sorted(culprits)
        assert outcome.exit_code == 0
        assert len(tried) <= 4 + 10 * size
        again, second = bench(culprits)
        search(PLUGINS, again, [])
        assert second == tried


def test_one_of_two_independent_faults_is_found() -> None:
    fails, _ = bench(["p03"], ["p09", "p10"])
    assert search(PLUGINS, fails, []).found == ["p03"]


def test_there_may_be_nothing_to_find() -> None:
    fails, tried = bench(["other"])
    outcome = search(PLUGINS, fails, [])
    assert (outcome.exit_code, outcome.found, len(tried)) == (1, [], 1)
    outcome = search(PLUGINS, bench([])[0], [])
    assert (outcome.exit_code, outcome.found) == (3, [])
    assert "with every third-party plugin disabled too" in outcome.message


def test_a_failure_that_does_not_come_back_is_told() -> None:
    answers = iter([True, False, False, False])

    def fails(enabled: object) -> bool:
        return next(answers)

    assert search(["a"], fails, []).exit_code == 4


def test_a_run_says_how_it_ended() -> None:
    def run(exit_code: int | None) -> str:
        return Run(enabled=["a"], disabled=[], exit_code=exit_code, seconds=1.25).text(2)

    assert run(0) == "run 2: passed in 1.2 s with a"
    assert run(78) == "run 2: failed (exit code 78) in 1.2 s with a"
    assert run(-11) == "run 2: failed (signal 11) in 1.2 s with a"
    assert run(None) == "run 2: failed (no end within the timeout) in 1.2 s with a"


# -- real commands -----------------------------------------------------------------------------


COMMAND = """
import json, os, sys
disabled = json.loads(os.environ["HOOKSERVE_DISABLE_PLUGINS"])
bad = {"b-dist:hookserve:b", "c-dist:hookserve:c"}
print("a line of the command")
sys.exit(7 if not bad & set(disabled) else 0)
"""


@pytest.fixture
def bisect(tmp_path: Path) -> Any:
    """Runs ``server plugins bisect`` with four plugins installed, of which none can be imported."""
    folder = tmp_path / "site"
    for name in "abcd":
        install_plugin(folder, f"{name}-dist", {name: "raise SystemError('imported')"})
    program = [sys.executable, "-P", "-m", "hookserve.server.cli", "plugins", "bisect"]

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        own = {"PYTHONPATH": str(folder), "HOOKSERVE_CACHE": str(tmp_path)}
        env = clean_environment({**own, **environ})
        return subprocess.run([*program, *words], env=env, capture_output=True, text=True)

    return run


def test_a_pair_is_found_by_running_the_command(bisect: Any) -> None:
    done = bisect("--json", "--", sys.executable, "-c", COMMAND)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["found"] == ["b-dist:hookserve:b", "c-dist:hookserve:c"]
    first, second, *_ = found["runs"]
    assert (len(first["enabled"]), first["exit_code"]) == (4, 7)
    assert (second["enabled"], second["exit_code"]) == ([], 0)
    tried = [tuple(run["enabled"]) for run in found["runs"]]
    assert len(set(tried)) == len(tried)
    assert "run 1: failed (exit code 7)" in done.stderr
    assert "a line of the command" in done.stderr


def test_what_is_disabled_already_stays_so(bisect: Any) -> None:
    command = ("--", sys.executable, "-c", COMMAND)
    done = bisect(*command, HOOKSERVE_DISABLE_PLUGINS="b")
    assert done.stdout == "c-dist:hookserve:c makes the command fail\n"
    assert "hookserve:b" not in done.stderr


def test_a_run_that_does_not_end_has_failed(bisect: Any) -> None:
    wait = "import json, os, time\n" + (
        'time.sleep(0 if "a-dist:hookserve:a" in json.loads('
        'os.environ["HOOKSERVE_DISABLE_PLUGINS"]) else 600)'
    )
    command = (sys.executable, "-c", wait)
    done = bisect("--timeout", "1", "--", *command, HOOKSERVE_PLUGINS="a")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a-dist:hookserve:a makes the command fail\n"
    assert "no end within the timeout" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "a command is needed"),
        (("--", "server", "run", "--disable-plugins", "a"), "--disable-plugins would win"),
        (("--", "server", "run", "--no_plugins"), "HOOKSERVE_NO_PLUGINS in the environment"),
        (("--", "server", "run", "--plugin=./a.py"), "say it with HOOKSERVE_PLUGIN in the env"),
        (("--timeout", "0", "--", "true"), "--timeout 0"),
    ],
)
def test_what_cannot_be_bisected_is_a_usage_error(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "bisect", *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_command_that_cannot_be_run_is_a_usage_error(bisect: Any) -> None:
    done = bisect("--", "/no/such/program")
    assert done.returncode == 2
    assert "/no/such/program cannot be run: No such file or directory" in done.stderr


def test_only_bisect_takes_words_behind_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", "--", "x"]) == 2
    assert "takes nothing behind '--'" in capsys.readouterr().err
