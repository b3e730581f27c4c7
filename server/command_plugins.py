"""``server plugins``: which plugins are installed, and what is known of them.

``list`` reads metadata and ``hookserve.toml`` and imports no plugin; ``list --load`` loads the
native ones in a child process with a deadline.
"""

from __future__ import annotations

import argparse
import json

from hookserve.engine.errors import HookserveError

from .arguments import Parser, add_settings
from .command_run import given_flags
from .load_cache import read_results, results_of, write_results
from .plugin_table import PluginRow, format_table, read_rows, to_plain
from .settings import Settings, all_specs, resolve_settings


class PluginLoadError(HookserveError):
    """Loading the plugins stopped, as a start of the server would."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(
        dest="plugins_verb", metavar="VERB", required=True, parser_class=Parser
    )
    listing = verbs.add_parser(
        "list",
        help="what is installed, and what is known without loading it",
        description="List the plugins that are installed. Nothing is imported without --load.",
    )
    listing.add_argument(
        "--load", action="store_true", help="load native plugins in a child process, and say how"
    )
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    wanted = [spec.name for spec in all_specs() if spec.owner == "plugins"]
    wanted += ["config", "cache_dir"]
    add_settings(listing, skip={spec.name for spec in all_specs()} - set(wanted))
    listing.usage = "server plugins list [flags]"


def run(found: argparse.Namespace) -> int:
    settings = resolve_settings(given_flags(found))
    rows = _load(settings) if found.load else _read(settings)
    print(json.dumps(to_plain(rows), indent=2) if found.json else format_table(rows))
    return 0


def _read(settings: Settings) -> list[PluginRow]:
    cache_dir = settings.engine_args.cache_dir
    return read_rows(settings.plugins, read_results(cache_dir) if cache_dir else {})


def _load(settings: Settings) -> list[PluginRow]:
    import msgspec

    from hookserve.hookspecs import PluginReport

    from .plugin_probe import probe_plugins
    from .plugin_table import rows_of

    probe = probe_plugins(settings.plugins)
    if probe.error is not None:
        raise PluginLoadError(probe.error, probe.exit_code)
    results = results_of(probe.reports)
    if settings.engine_args.cache_dir:
        write_results(settings.engine_args.cache_dir, results)
    rows = rows_of([msgspec.convert(report, PluginReport) for report in probe.reports])
    return [msgspec.structs.replace(row, last_load=results.get(row.identity)) for row in rows]
