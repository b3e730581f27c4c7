"""``docs/stability.md``, made from the table of tiers and of what is about to go.

``python -m hookserve.server.stability_reference`` prints it; a test compares it with the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from hookserve.hookspecs.deprecated import DEPRECATED
from hookserve.hookspecs.stability import STABILITY, TIERS, Kind

from .cli_reference import markdown_table
from .settings import all_specs

_HEAD = """# What stays, and for how long

This page is made by `python -m hookserve.server.stability_reference`.

Each public point has one of three tiers. An environment variable that belongs to a flag has that
flag's tier. `server --version` prints the version of the hook API; a plugin states the versions
that it accepts in its `hookserve.toml` (`api`), and one that does not fit is refused before it is
imported. Who implements an unstable hook or gives an unstable flag is told so in the log, once.
"""
_TITLES: dict[Kind, str] = {
    "hook": "Hooks",
    "name": "Python names",
    "flag": "Flags",
    "environment": "Other environment variables",
    "route": "Routes",
}
_OUTGOING = """## About to go

What is deprecated is warned about where it is used, once for each plugin, and is gone in the
version that stands here.
"""


def stability_reference() -> str:
    """The whole page."""
    parts = [_HEAD, markdown_table(("tier", ""), [(f"**{t}**", text) for t, text in TIERS.items()])]
    for kind, title in _TITLES.items():
        parts.append(f"## {title}\n\n" + markdown_table(("", "tier"), list(_rows(kind))))
    parts.append(_OUTGOING)
    if DEPRECATED:
        rows = [
            (f"`{item.name}`", item.kind, item.since, item.removal, item.instead)
            for item in DEPRECATED
        ]
        parts.append(markdown_table(("", "what", "since", "gone in", "use"), rows))
    else:
        parts.append("Nothing is.\n")
    return "\n".join(parts)


def _rows(kind: Kind) -> Iterator[tuple[str, str]]:
    variables = {spec.flag: spec.env for spec in all_specs()} if kind == "flag" else {}
    for tier, names in STABILITY[kind].items():
        for name in names:
            variable = f", `{variables[name]}`" if name in variables else ""
            yield f"`{name}`{variable}", tier


if __name__ == "__main__":
    sys.stdout.write(stability_reference())
