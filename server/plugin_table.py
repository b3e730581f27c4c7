"""The table of plugins that people read, and the same rows as plain data.

Made from metadata and ``hookserve.toml`` alone; the reports of a process that loaded the plugins
can be laid over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hookserve.hookspecs.settings import PluginSettings

from .load_cache import LoadResult, file_stamp

if TYPE_CHECKING:
    from hookserve.hookspecs import PluginReport

_WIDTH_ERROR = 100
"""Characters of an error that one cell shows; the JSON has all of it."""


class PluginRow(msgspec.Struct, frozen=True, kw_only=True):
    identity: str
    version: str | None
    file: str | None
    state: str
    roles: list[str]
    hooks: list[str] | None
    """``None``: the plugin does not say which hooks it has, and was not loaded."""
    last_load: LoadResult | None
    builtin: bool


def read_rows(
    settings: PluginSettings, loads: Mapping[str, LoadResult], say: Callable[[str], None]
) -> list[PluginRow]:
    """Every plugin that would be found; imports none. ``say`` is told what is odd about lists.

    Raises:
        hookserve.hookspecs.PluginSelectionError: an entry of a list that fits no plugin.
    """
    from hookserve.hookspecs.discovery import find_plugins

    rows = []
    for plugin in find_plugins(settings, say):
        state = f"{plugin.state} by {plugin.reason}" if plugin.state == "blocked" else plugin.state
        if plugin.fault is not None and plugin.state == "found":
            state = f"out at stage 'discover': {plugin.fault}"
        last = loads.get(plugin.identity)
        if last is not None and last.stamp != file_stamp(plugin.version, plugin.file):
            last = None
        rows.append(
            PluginRow(
                identity=plugin.identity,
                version=plugin.version,
                file=plugin.file,
                state=state,
                roles=sorted(plugin.facts.roles),
                hooks=None if plugin.facts.hooks is None else list(plugin.facts.hooks),
                last_load=last,
                builtin=plugin.is_builtin,
            )
        )
    return rows


def rows_of(reports: Iterable[PluginReport]) -> list[PluginRow]:
    """The rows of a process that has loaded the plugins of its roles."""
    return [
        PluginRow(
            identity=report.identity,
            version=report.version,
            file=report.file,
            state=report.state_text(),
            roles=report.roles,
            hooks=[hook.name for hook in report.hooks],
            last_load=None,
            builtin=report.group == "builtin",
        )
        for report in reports
    ]


def format_table(rows: Sequence[PluginRow]) -> str:
    """Third parties first, then the built-ins."""
    head = ("identity", "version", "state", "roles", "hooks", "last load")
    ordered = sorted(rows, key=lambda row: row.builtin)
    return in_columns([head, *(_cells(row) for row in ordered)])


def in_columns(table: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the columns as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def _cells(row: PluginRow) -> tuple[str, ...]:
    load = "-" if row.last_load is None or row.builtin else row.last_load.text()
    hooks = "not stated" if row.hooks is None else ", ".join(row.hooks) or "none"
    return (
        row.identity,
        row.version or "-",
        _cut(row.state),
        ", ".join(row.roles),
        "-" if row.builtin and row.hooks is None else hooks,
        _cut(load),
    )


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH_ERROR else text[: _WIDTH_ERROR - 3] + "..."


def summarize(reports: Sequence[PluginReport]) -> str:
    """One line for the start: third parties by identity, and what is out, blocked or overriding."""
    third = [report for report in reports if report.group != "builtin"]
    parts = [f"{len(reports) - len(third)} built in"]
    for report in third:
        parts.append(report.identity if report.state == "active" else _with_state(report))
    for report in reports:
        if report.group == "builtin" and report.state in ("out", "blocked"):
            parts.append(_with_state(report))
        for declared in report.declarations:
            if declared.overrides:
                parts.append(f"{report.identity} overrides {declared.kind} {declared.name!r}")
    return "; ".join(parts)


def _with_state(report: PluginReport) -> str:
    return f"{report.identity} ({_cut(report.state_text())})"


def to_plain(rows: Iterable[PluginRow]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(row) for row in rows]
