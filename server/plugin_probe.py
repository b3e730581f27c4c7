"""Loads every native plugin in a process of its own, and tells what became of each.

Run as ``python -P -m hookserve.server.plugin_probe --fd N``: settings come as JSON on standard
input, the reports go as JSON to descriptor N, because a plugin may print. The deadline is the
parent's (``probe_plugins``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import msgspec

from hookserve.engine.errors import ConfigError
from hookserve.hookspecs.settings import PluginSettings
from hookserve.hookspecs.types import Role

ROLES: tuple[Role, ...] = ("front", "engine", "worker", "cli")
DEADLINE_S = 60.0


class Probe(msgspec.Struct, frozen=True):
    """What the child sends: ``PluginReport``s as plain data, or the error that stopped it."""

    reports: list[dict[str, Any]] = []
    error: str | None = None
    exit_code: int = 0


def probe_plugins(settings: PluginSettings, deadline_s: float = DEADLINE_S) -> Probe:
    """Load the plugins in a child process.

    Raises:
        ConfigError: the child did not end in time, or ended without a word.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as answer:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "hookserve.server.plugin_probe", "--fd", str(writer)],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        try:
            child.communicate(msgspec.json.encode(settings), timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"loading the plugins took more than {deadline_s:g} s and was stopped; leave "
                "plugins out with --disable-plugins to find the one"
            ) from error
        finally:
            _end(child)
        content = answer.read()
    try:
        return msgspec.json.decode(content, type=Probe)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"the process that loaded the plugins ended with exit code {child.returncode} before "
            "it could report; leave plugins out with --disable-plugins to find the one"
        ) from error


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started; all of it is in one session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def main(argv: list[str]) -> int:
    from hookserve.hookspecs import create_plugin_manager
    from hookserve.hookspecs.errors import HostError

    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=PluginSettings)
    try:
        reports = create_plugin_manager(ROLES, settings).describe()
        probe = Probe([msgspec.to_builtins(report) for report in reports])
    except HostError as error:
        probe = Probe(error=str(error), exit_code=error.exit_code)
    with os.fdopen(int(argv[1]), "wb") as answer:
        answer.write(msgspec.json.encode(probe))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
