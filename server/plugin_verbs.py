"""Verbs that plugins add to the command line (hook ``cli_command``): listed without importing
anybody, found and run when the program itself has no such verb.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hookserve.engine.errors import HookserveError, UsageError
from hookserve.hookspecs.errors import HostError, describe_error
from hookserve.hookspecs.notify_loop import caught

from .settings import Settings, resolve_settings

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.plugin import Plugin
    from hookserve.hookspecs.settings import PluginSettings

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def add_stated_verbs(verbs: Any, own: Collection[str]) -> None:
    """Put the verbs that installed plugins name in ``hookserve.toml`` (``commands``) into the list
    of ``server --help``; imports none of them. A wrong setting is told in their place.

    Args:
        verbs: what ``add_subparsers`` made.
        own: the program's own verbs, which win.
    """
    try:
        candidates = cli_plugins(resolve_settings({}).plugins)
    except (HookserveError, HostError) as error:
        verbs.add_parser("...", help=f"the verbs of plugins cannot be listed: {error}")
        return
    stated = {verb: plugin.identity for plugin in candidates for verb in plugin.facts.commands}
    for verb in sorted(stated.keys() - set(own)):
        verbs.add_parser(verb, help=f"a verb of the plugin {stated[verb]}")


def run_plugin_verb(words: Sequence[str], own: Collection[str]) -> int | None:
    """Run the verb that the words begin with, if a plugin has it.

    The plugins of the role cli are loaded; what chooses among them is the environment, because
    every word behind the verb is the plugin's own.

    Returns: the exit code; ``None`` if there is no plugin that could have a verb.

    Raises:
        UsageError: no plugin has this one.
        HookserveError, HostError: settings that are wrong, two plugins with one verb, or a plugin
            that must work and does not.
    """
    from hookserve.hookspecs import bootstrap

    from .logging_setup import start_logging

    settings = resolve_settings({})
    if not cli_plugins(settings.plugins):
        return None
    start_logging(_quieter(settings), "Command")
    host = bootstrap(["cli"], settings.plugins)
    try:
        _tell(host, own)
        host.calls.process_started(host.roles, None)
        verb, *arguments = words
        registry = host.registry("cli_command")
        claim = next((claim for claim in registry.claims() if claim.name == verb), None)
        if claim is None:
            known = [*own, *(claim.name for claim in registry.claims())]
            raise UsageError(
                f"argument VERB: invalid choice: {verb!r} (choose from {', '.join(known)})"
            )
        target = registry.resolve(verb)
        with host.enter(claim.plugin):
            return _call(claim.plugin, verb, target, arguments)
    finally:
        host.close()


def cli_plugins(settings: PluginSettings) -> list[Plugin]:
    """The third parties of the role cli that are not blocked; imports none."""
    from hookserve.hookspecs.discovery import find_plugins

    return [
        plugin
        for plugin in find_plugins(settings)
        if "cli" in plugin.facts.roles and plugin.state == "found" and not plugin.is_builtin
    ]


def _quieter(settings: Settings) -> Settings:
    """A verb's own output is what is wanted: without a word of the operator only warnings."""
    if settings.origins["log_level"].kind != "default":
        return settings
    server = msgspec.structs.replace(settings.server, log_level="WARNING")
    return msgspec.structs.replace(settings, server=server)


def _tell(host: Host, own: Collection[str]) -> None:
    from hookserve.engine.log import log_host

    log_host(host)
    for claim in host.registry("cli_command").claims():
        if claim.name in own:
            logger.warning(
                "plugin %s: its verb '%s' is the program's own, which wins", claim.owner, claim.name
            )


def _call(plugin: Plugin, verb: str, target: Any, arguments: list[str]) -> int:
    """Run the verb; what it raises is told in one line with its owner."""
    try:
        code = target(arguments)
    except SystemExit as stop:  # as argparse ends a program
        code = stop.code
        if isinstance(code, str):
            logger.error("%s", code)
            return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (HookserveError, HostError):
        raise  # an operator's error, which has its own sentence and exit code
    except caught() as error:
        logger.debug("the verb '%s' failed", verb, exc_info=True)
        logger.error("plugin %s: verb '%s' raised %s", plugin.identity, verb, describe_error(error))
        return EXIT_FAILED
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code)
    logger.error(
        "plugin %s: verb '%s' returned %r; expected an exit code or None",
        plugin.identity,
        verb,
        code,
    )
    return EXIT_FAILED
