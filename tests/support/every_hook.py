"""A plugin that implements every hook that there is, and writes down each call of each.

It answers nothing, so that everything goes on as without it; only ``authenticate`` knows everybody,
because a server with that hook lets nobody else in.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hookserve.hookspecs import ROLES, specs
from hookserve.hookspecs.manager import read_specs
from plugin_folder import install_plugin

SPECS = read_specs(specs)
DISTRIBUTION, NAME = "every-dist", "all_hooks"
IDENTITY = f"{DISTRIBUTION}:hookserve:{NAME}"
TRACE = "EVERY_HOOK_TRACE"
"""The variable that names the file."""

_HEAD = f"""
import json
import os

from hookserve.hookspecs import Principal, hookimpl


def note(hook, ctx):
    line = json.dumps({{"hook": hook, "pid": os.getpid(), "roles": sorted(ctx.roles)}}) + "\\n"
    with open(os.environ[{TRACE!r}], "a") as file:  # one write of one short line does not tear
        file.write(line)
"""
_EACH = """

@hookimpl
def {name}(ctx):
    note({name!r}, ctx)
"""
_ANSWERS = {
    "authenticate": '    return Principal("everybody", scopes=frozenset({"inference", "admin"}))\n',
}


def install(site: Path) -> None:
    """As an installed package that names every role, the command line's too."""
    functions = [_EACH.format(name=name) + _ANSWERS.get(name, "") for name in SPECS]
    source = _HEAD + "".join(functions)
    install_plugin(site, DISTRIBUTION, {NAME: source}, toml=f"roles = {list(ROLES)}")


def read_calls(trace: Path) -> Counter[tuple[int, tuple[str, ...], str]]:
    """How often each hook was called, by process id and roles of the process."""
    lines = map(json.loads, trace.read_text().splitlines())
    return Counter((each["pid"], tuple(each["roles"]), each["hook"]) for each in lines)
