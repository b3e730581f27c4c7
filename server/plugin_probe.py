"""Loads every native plugin in a process of its own, and tells what became of each.

Run as ``python -P -m hookserve.server.plugin_probe --fd N``: settings come as JSON on standard
input, the reports go as JSON to the file behind descriptor N, because a plugin may print. The
deadline is the parent's (``probe_plugins``).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import msgspec

from hookserve.engine.errors import ConfigError
from hookserve.hookspecs.report import PluginReport
from hookserve.hookspecs.settings import PluginSettings
from hookserve.hookspecs.types import Role

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

STDERR = 2
"""What plugins print goes here, as their log does: standard output is for the answer."""
_COMMAND = (sys.executable, "-P", "-m", "hookserve.server.plugin_probe")
ROLES: tuple[Role, ...] = ("front", "engine", "worker", "cli")


class SettingField(msgspec.Struct, frozen=True):
    """One field of what a plugin's ``settings_schema`` states."""

    name: str
    type: str
    default: str | None
    """As Python writes it; ``None``: the section must have it."""


class Probe(msgspec.Struct, frozen=True):
    """What the child sends: what became of each plugin, or the error that stopped it."""

    reports: list[PluginReport] = []
    schemas: dict[str, list[SettingField]] = {}
    """By identity, of the plugins that state one."""
    error: str | None = None
    exit_code: int = 0


def probe_plugins(settings: PluginSettings) -> Probe:
    """Load the plugins in a child process, within the time that a start gives one hook.

    Raises:
        ConfigError: the child did not end in time, or ended without a word.
    """
    deadline_s = settings.startup_hook_timeout_s
    # A file: a pipe would be full before many plugins are told of, and nobody reads it meanwhile.
    with tempfile.TemporaryFile() as answer:
        child = subprocess.Popen(
            [*_COMMAND, "--fd", str(answer.fileno())],
            stdin=subprocess.PIPE,
            stdout=STDERR,
            pass_fds=(answer.fileno(),),
            start_new_session=True,
        )
        try:
            child.communicate(msgspec.json.encode(settings), timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"loading the plugins took more than {deadline_s:g} s and was stopped; leave "
                "plugins out with --disable-plugins to find the one"
            ) from error
        finally:
            _end(child)
        answer.seek(0)  # the child has moved it: the two share one place in the file
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


def _schemas(host: Host) -> dict[str, list[SettingField]]:
    configs = {
        plugin.identity: host.config_of(plugin)
        for plugin in host.plugins
        if plugin.state == "active"
    }
    return {
        identity: _fields(type(config))
        for identity, config in configs.items()
        if isinstance(config, msgspec.Struct)
    }


def _fields(schema: type[msgspec.Struct]) -> list[SettingField]:
    return [
        SettingField(field.encode_name, inspect.formatannotation(field.type), _default(field))
        for field in msgspec.structs.fields(schema)
    ]


def _default(field: msgspec.structs.FieldInfo) -> str | None:
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    factory = field.default_factory
    return None if factory is msgspec.NODEFAULT else f"{getattr(factory, '__name__', 'new')}()"


def main(argv: list[str]) -> int:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.errors import HostError

    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=PluginSettings)
    try:
        host = Host(ROLES, settings, strict=False)
        probe = Probe(host.describe(), _schemas(host))
    except HostError as error:
        probe = Probe(error=str(error), exit_code=error.exit_code)
    with os.fdopen(int(argv[1]), "wb") as answer:
        answer.write(msgspec.json.encode(probe))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
