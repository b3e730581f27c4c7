"""Everything that is known of one plugin, for ``server plugins show``.

Made from the reports of a process that loaded it, with all the others, because what becomes of its
declarations depends on theirs (``plugin_probe``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import msgspec

from hookserve.hookspecs.discovery import find_plugins
from hookserve.hookspecs.report import HookReport, PluginReport
from hookserve.hookspecs.selection import select
from hookserve.hookspecs.settings import PluginSettings

from .load_cache import LoadResult
from .plugin_probe import Probe, SettingField


class PluginDetails(msgspec.Struct, frozen=True, kw_only=True):
    """``problem`` says why the plugins could not be loaded; the report then tells what the files
    tell."""

    report: PluginReport
    settings: list[SettingField] | None = None
    """What its ``settings_schema`` states; ``None``: nothing."""
    last_load: LoadResult | None = None
    """How the load before this one ended."""
    problem: str | None = None


def identity_of(settings: PluginSettings, entry: str) -> str:
    """
    Raises:
        PluginSelectionError: if the entry means no plugin, or several.
    """
    return select(entry, find_plugins(settings), "NAME").identity


def details_of(
    identity: str, settings: PluginSettings, probe: Probe, last_load: LoadResult | None
) -> PluginDetails:
    """What a load, or the files where there was none, tell of one plugin."""
    from hookserve.hookspecs import create_plugin_manager

    reports = probe.reports
    if probe.error is not None:
        reports = create_plugin_manager(["front"], settings, load=False).describe()
    return PluginDetails(
        report=next(report for report in reports if report.identity == identity),
        settings=probe.schemas.get(identity),
        last_load=last_load,
        problem=probe.error,
    )


def details_text(details: PluginDetails) -> str:
    """For people: a line for each fact, then hooks, declarations and settings, then a failure."""
    report = details.report
    lines = [f"{name:<14}{value}" for name, value in _facts(details) if value]
    lines += _section("hooks", (_hook_line(hook) for hook in report.hooks))
    lines += _section(
        "declares",
        (f"{d.kind} '{d.name}' -> {d.target} ({d.state})" for d in report.declarations),
    )
    lines += _section("settings", (_setting_line(field) for field in details.settings or ()))
    lines += _section("warnings", report.warnings)
    lines += _section("patches", report.patches)
    traceback = report.traceback
    if traceback is None and report.state == "out" and details.last_load is not None:
        traceback = details.last_load.traceback
    lines += _section("traceback", (traceback or "").splitlines())
    return "\n".join(lines)


def _facts(details: PluginDetails) -> Iterator[tuple[str, str | None]]:
    report = details.report
    yield "identity", report.identity
    yield "version", report.version
    yield "file", report.file
    yield "state", report.state_text()
    yield "required", "yes" if report.required else None
    yield "roles", ", ".join(report.roles)
    yield "hook API", report.api or "any"
    yield "called before", ", ".join(report.before)
    yield "called after", ", ".join(report.after)
    yield "verbs", ", ".join(report.commands)
    yield "load", None if report.load_ms is None else f"{report.load_ms:.1f} ms"
    yield "last load", None if details.last_load is None else details.last_load.text()
    yield "configuration", json.dumps(report.config) if report.config else None
    yield "not loaded", details.problem


def _hook_line(hook: HookReport) -> str:
    off = " (switched off)" if hook.switched_off else ""
    return f"{hook.name} in {', '.join(hook.roles)}: {hook.where}{off}"


def _setting_line(field: SettingField) -> str:
    default = "must be given" if field.default is None else f"default {field.default}"
    return f"{field.name}: {field.type} ({default})"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    indented = [f"  {line}" for line in lines]
    return [title, *indented] if indented else []
