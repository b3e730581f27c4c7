"""``server plugins``: which plugins are installed, what they do, and which one is at fault.

``list`` reads metadata and ``hookserve.toml`` and imports no plugin; ``list --load``, ``show`` and
``hooks`` load the native ones in a child process with a deadline; ``hooks --url`` asks a server
that runs; ``bisect`` runs a command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from hookserve.engine.errors import HookserveError, UsageError

from .arguments import Parser, add_settings
from .command_run import given_flags
from .load_cache import LoadResult, read_results, results_of, write_results
from .plugin_table import PluginRow, format_table, read_rows, to_plain
from .settings import Settings, all_specs, resolve_settings

if TYPE_CHECKING:
    from hookserve.hookspecs.report import ProcessReport

    from .plugin_probe import Probe

_VERBS = {
    "list": ("[flags]", "what is installed, and what is known without loading it"),
    "show": ("NAME [flags]", "everything about one plugin, with the traceback of its failure"),
    "hooks": ("[flags]", "every hook, who implements it, in call order, and who computes each op"),
    "bisect": ("[flags] -- COMMAND ...", "find the plugin that makes a command fail"),
}
_BISECT_EPILOG = (
    "COMMAND is run again and again with other plugins disabled (HOOKSERVE_DISABLE_PLUGINS) until "
    "the fewest are found with which it fails. It must end by itself, as 'server run --dry-run' "
    "does. Exit codes: 0 found; 1 it does not fail; 2 it cannot be run; 3 it fails without the "
    "plugins too; 4 it does not fail the same way twice."
)


class PluginLoadError(HookserveError):
    """Loading the plugins stopped, as a start of the server would."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(
        dest="plugins_verb", metavar="VERB", required=True, parser_class=Parser
    )
    made = {}
    for name, (usage, text) in _VERBS.items():
        made[name] = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made[name].usage = f"server plugins {name} {usage}"
        made[name].add_argument("--json", action="store_true", help="print one JSON document")
        if name != "bisect":
            wanted = [spec.name for spec in all_specs() if spec.owner == "plugins"]
            wanted += ["config", "cache_dir"]
            add_settings(made[name], skip={spec.name for spec in all_specs()} - set(wanted))
    made["list"].add_argument(
        "--load", action="store_true", help="load native plugins in a child process, and say how"
    )
    made["hooks"].add_argument(
        "--url",
        help="a server that runs: what its processes call, and how often ops have run there",
    )
    made["hooks"].add_argument(
        "--api-key", dest="key", metavar="KEY", help="of the scope admin, for the server at --url"
    )
    made["show"].add_argument("name", metavar="NAME", help="as in --plugins")
    made["bisect"].add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="seconds after which a run is ended and counts as failed",
    )
    made["bisect"].epilog = _BISECT_EPILOG


def run(found: argparse.Namespace) -> int:
    verb = found.plugins_verb
    if verb == "bisect":
        from .plugin_bisect import bisect

        return bisect(found.command, found.timeout, as_json=found.json)
    if found.command:
        raise UsageError(f"server plugins {verb} takes nothing behind '--'")
    settings = resolve_settings(given_flags(found))
    if verb == "show":
        return _show(settings, found.name, as_json=found.json)
    if verb == "hooks":
        return _hooks(settings, found)
    rows = _load(settings) if found.load else _read(settings)
    print(json.dumps(to_plain(rows), indent=2) if found.json else format_table(rows))
    return 0


def _read(settings: Settings) -> list[PluginRow]:
    def say(line: str) -> None:
        print(line, file=sys.stderr)

    return read_rows(settings.plugins, _remembered(settings), say)


def _remembered(settings: Settings) -> Mapping[str, LoadResult]:
    cache_dir = settings.engine_args.cache_dir
    return read_results(cache_dir) if cache_dir else {}


def _load(settings: Settings) -> list[PluginRow]:
    from .plugin_table import rows_of

    reports = _probe(settings).reports
    results = results_of(msgspec.to_builtins(reports))
    return [
        msgspec.structs.replace(row, last_load=results.get(row.identity))
        for row in rows_of(reports)
    ]


def _probe(settings: Settings) -> Probe:
    """Load the plugins in a child, and remember what became of them.

    Raises:
        HookserveError: they cannot be loaded at all.
    """
    from .plugin_probe import probe_plugins

    probe = probe_plugins(settings.plugins)
    if probe.error is not None:
        raise PluginLoadError(probe.error, probe.exit_code)
    if settings.engine_args.cache_dir:
        results = results_of(msgspec.to_builtins(probe.reports))
        write_results(settings.engine_args.cache_dir, results)
    return probe


def _show(settings: Settings, entry: str, *, as_json: bool) -> int:
    """A plugin is shown also where loading stopped; then with what the files tell, and why."""
    from .plugin_details import details_of, details_text, identity_of
    from .plugin_probe import Probe

    identity = identity_of(settings.plugins, entry)
    remembered = _remembered(settings)
    try:
        probe = _probe(settings)
    except HookserveError as error:
        probe = Probe(error=str(error), exit_code=error.exit_code)
    details = details_of(identity, settings.plugins, probe, remembered.get(identity))
    print(json.dumps(msgspec.to_builtins(details), indent=2) if as_json else details_text(details))
    return probe.exit_code


def _hooks(settings: Settings, found: argparse.Namespace) -> int:
    from .hook_table import format_hooks, hook_rows
    from .op_listing import declared_ops, format_ops, running_ops

    if found.url is None:
        if found.key is not None:
            raise UsageError("--api-key is for the server at --url, which is not given")
        reports = _probe(settings).reports
        ops = declared_ops(reports)
    else:
        processes = _ask(found)
        reports = [report for process in processes for report in process.plugins]
        ops = running_ops(processes)
    rows = hook_rows(reports)
    if found.json:
        print(json.dumps(msgspec.to_builtins({"hooks": rows, "ops": ops}), indent=2))
    else:
        print(f"{format_hooks(rows)}\n\n{format_ops(ops)}")
    return 0


def _ask(found: argparse.Namespace) -> list[ProcessReport]:
    """What the processes of a server that runs tell of themselves.

    Raises:
        HookserveError: it cannot be reached, or refuses.
    """
    import asyncio

    from .http_lines import Address
    from .live_reports import read_reports

    flags = sorted(set(given_flags(found)))
    if flags:
        option = "--" + flags[0].replace("_", "-")
        raise UsageError(f"{option} says what to load, and --url names a server that runs already")
    return asyncio.run(read_reports(Address.parse(found.url), found.key))
