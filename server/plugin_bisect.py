"""``server plugins bisect``: the fewest third-party plugins with which a command fails.

The command runs with the others disabled through the environment, so it may be anything that
starts the server, or a test that does. The search is the divide and conquer of QuickXplain (Junker,
"QuickXplain: preferred explanations and relaxations for over-constrained problems", AAAI 2004): one
plugin of n is found in about 2 log2 n runs, a pair in about twice as many.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hookserve.engine.errors import UsageError
from hookserve.hookspecs.discovery import find_plugins

from .plugin_probe import STDERR
from .setting_values import Spec
from .settings import all_specs, environment_with, resolve_settings

EXIT_FOUND = 0
EXIT_DOES_NOT_FAIL = 1
EXIT_FAILS_WITHOUT = 3
EXIT_NOT_THE_SAME = 4
EXIT_INTERRUPTED = 130

_WINS = "would win over the choice of each run"
_CHOOSING = {
    "--disable-plugins": _WINS,
    "--no-plugins": _WINS,
    "--plugins": _WINS,
    "--plugin": "would load a plugin that is in no list of those to search",
}
"""Flags of the command that choose its plugins, and what is wrong with each."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command."""

    enabled: list[str]
    disabled: list[str]
    exit_code: int | None
    """Negative: ended by that signal; ``None``: ended at the timeout."""
    seconds: float

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    def text(self, number: int) -> str:
        outcome = "passed" if not self.failed else f"failed ({self._how()})"
        enabled = ", ".join(self.enabled) or "none"
        return f"run {number}: {outcome} in {self.seconds:.1f} s with {enabled}"

    def _how(self) -> str:
        if self.exit_code is None:
            return "no end within the timeout"
        if self.exit_code < 0:
            return f"signal {-self.exit_code}"
        return f"exit code {self.exit_code}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    found: list[str]
    """Identities; empty if the search could not be made."""
    message: str
    exit_code: int
    runs: list[Run]


def bisect(command: Sequence[str], timeout_s: float | None, *, as_json: bool) -> int:
    """Search, tell of each run on standard error and of the outcome on standard output.

    Returns: the exit code.

    Raises:
        UsageError: no command, or one that cannot be run or chooses its plugins itself.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"--timeout {timeout_s:g}: expected seconds, more than 0")
    _check(command)
    settings = resolve_settings({}).plugins
    candidates = [
        plugin.identity
        for plugin in sorted(find_plugins(settings), key=lambda plugin: plugin.identity)
        if plugin.state == "found" and not plugin.is_builtin
    ]
    bench = _Bench(command, timeout_s, candidates, settings.deny)
    try:
        outcome = search(candidates, bench.fails, bench.runs)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(
        json.dumps(msgspec.to_builtins(outcome), indent=2) if as_json else outcome.message,
        flush=True,
    )
    return outcome.exit_code


def _check(command: Sequence[str]) -> None:
    if not command:
        raise UsageError("a command is needed: server plugins bisect -- COMMAND ...")
    for word in command:
        flag = word.partition("=")[0].replace("_", "-")
        if flag in _CHOOSING:
            raise UsageError(
                f"the command's own {flag} {_CHOOSING[flag]}; leave it out, and say it with "
                f"{_spec(flag).env} in the environment"
            )


def _spec(flag: str) -> Spec:
    return next(spec for spec in all_specs() if spec.flag == flag)


def search(
    candidates: Sequence[str], fails: Callable[[Sequence[str]], bool], runs: list[Run]
) -> Outcome:
    """Find the fewest of the candidates with which the command fails.

    Args:
        fails: runs the command with these plugins and no other third party.
        runs: what ``fails`` notes its runs in.
    """

    def end(message: str, exit_code: int, found: Sequence[str] = ()) -> Outcome:
        return Outcome(found=list(found), message=message, exit_code=exit_code, runs=runs)

    if not fails(candidates):
        return end("the command does not fail: there is nothing to look for", EXIT_DOES_NOT_FAIL)
    if fails([]):
        return end(
            "the command fails with every third-party plugin disabled too: it is none of them",
            EXIT_FAILS_WITHOUT,
        )
    found = sorted(_smallest([], [], list(candidates), fails))
    if not fails(found):
        return end(
            f"the command does not fail with {', '.join(found)} alone, as it did before: it does "
            "not fail the same way twice",
            EXIT_NOT_THE_SAME,
        )
    if len(found) == 1:
        return end(f"{found[0]} makes the command fail", EXIT_FOUND, found)
    return end(
        f"the command fails only with all of these together: {', '.join(found)}", EXIT_FOUND, found
    )


def _smallest(
    kept: list[str],
    added: list[str],
    candidates: list[str],
    fails: Callable[[Sequence[str]], bool],
) -> list[str]:
    """The fewest candidates that fail together with ``kept``, which holds ``added``."""
    if added and fails(kept):
        return []
    if len(candidates) == 1:
        return candidates
    half = len(candidates) // 2
    first, second = candidates[:half], candidates[half:]
    of_second = _smallest([*kept, *first], first, second, fails)
    of_first = _smallest([*kept, *of_second], of_second, first, fails)
    return [*of_first, *of_second]


class _Bench:
    """Runs the command with some of the plugins."""

    def __init__(
        self,
        command: Sequence[str],
        timeout_s: float | None,
        candidates: Sequence[str],
        deny: Sequence[str],
    ) -> None:
        self.command = list(command)
        self.timeout_s = timeout_s
        self.candidates = candidates
        self.deny = deny
        """What is disabled in every run already."""
        self.runs: list[Run] = []
        self._known: dict[frozenset[str], bool] = {}

    def fails(self, enabled: Sequence[str]) -> bool:
        """Whether it fails; a set that was tried is not tried again."""
        key = frozenset(enabled)
        if key not in self._known:
            run = self._run(key)
            self.runs.append(run)
            self._known[key] = run.failed
            print(run.text(len(self.runs)), file=sys.stderr, flush=True)
        return self._known[key]

    def _run(self, enabled: frozenset[str]) -> Run:
        disabled = [identity for identity in self.candidates if identity not in enabled]
        denied = json.dumps([*self.deny, *disabled])
        environ = environment_with(_spec("--disable-plugins"), denied)
        started = time.monotonic()
        exit_code = self._exit_code(environ)
        return Run(
            enabled=sorted(enabled),
            disabled=disabled,
            exit_code=exit_code,
            seconds=round(time.monotonic() - started, 3),
        )

    def _exit_code(self, environ: dict[str, str]) -> int | None:
        try:
            # Standard output is for the outcome alone; a session of its own, so that the timeout
            # ends whatever the command has started.
            child: subprocess.Popen[Any] = subprocess.Popen(
                self.command, env=environ, stdout=STDERR, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"{self.command[0]} cannot be run: {error.strerror}") from error
        try:
            return child.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
