"""Options that plugins add to ``server run``: asked for, checked, and put among the plugin's own
settings.

The hook ``cli_options`` fills a parser that holds nothing else; what passes is moved into the real
one. A plugin that adds what cannot be an option is out, with all that it added. What the command
line means otherwise is ``arguments``'.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from hookserve.engine.errors import HookserveError
from hookserve.hookspecs.context import enter, running
from hookserve.hookspecs.current_host import look_ahead
from hookserve.hookspecs.errors import (
    HostError,
    PluginConflictError,
    PluginError,
    describe_error,
)
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.plugin import Plugin
from hookserve.hookspecs.selection import matches
from hookserve.hookspecs.settings import Denied, PluginSettings

from .arguments import Parser, add_settings, options_of
from .plugin_verbs import cli_plugins
from .setting_values import Origin
from .settings import Settings, all_specs, resolve_settings

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

HOOK = "cli_options"
_NAME = re.compile(r"--?[A-Za-z][A-Za-z0-9-]*")
_OF_PYTHON = argparse.__name__
_ELSEWHERE = "no settings of their own: elsewhere keys of the plugin's section of --plugin-config"


@dataclass
class _Added:
    """One option of one plugin, as it stands in the real parser."""

    plugin: Plugin
    action: argparse.Action
    options: tuple[str, ...]
    key: str
    """Its name in the plugin's section."""
    default: Any = None


@dataclass
class PluginOptions:
    """What plugins added to one parser."""

    added: list[_Added] = field(default_factory=list)
    denied: list[Denied] = field(default_factory=list)
    """The plugins whose hook failed: they are out in every process."""

    def apply(self, settings: Settings, found: argparse.Namespace) -> Settings:
        """The settings with the options' values in the plugins' own sections, and without the
        plugins that failed.

        Raises:
            PluginError: a value that cannot be sent to other processes.
        """
        if not self.added and not self.denied:
            return settings
        config = dict(settings.plugins.config)
        given: list[str] = []
        for added in self.added:
            key = _section_of(added.plugin, config)
            section = dict(config.get(key, {}))
            if added.action.dest in vars(found):
                section[added.key] = _plain(added, getattr(found, added.action.dest))
                given.append(added.options[-1])
            elif added.default is not None:
                section.setdefault(added.key, _plain(added, added.default))
            if section or key in config:
                config[key] = section
        denied = (*settings.plugins.denied, *self.denied)
        origins = dict(settings.origins)
        if given:
            origins["plugin_config"] = Origin("flag", ", ".join(given))
        return msgspec.structs.replace(
            settings,
            plugins=msgspec.structs.replace(settings.plugins, config=config, denied=denied),
            values={**settings.values, "plugin_config": config},
            origins=origins,
        )


def add_plugin_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> PluginOptions:
    """Ask the plugins of the role cli, and add what they want to the parser of ``server run``.

    Args:
        words: the normalized command line, of which only the choice of plugins is read.

    Raises:
        HookserveError, HostError: whatever is wrong with that choice, or a plugin that must work.
    """
    asks_for_help = "-h" in words or "--help" in words
    try:
        settings = _plugin_settings(words)
        if not any(map(_may_add, cli_plugins(settings))):
            return PluginOptions()
        host = look_ahead(["cli"], settings, only=[HOOK])
        options = _Collector(parser, host).collect()
    except (HookserveError, HostError) as error:
        if not asks_for_help:
            raise
        _add_note(parser, f"The options of plugins are not shown: {error}")
        return PluginOptions()
    for denied in options.denied:
        _add_note(parser, f"The options of {denied.identity} are not shown: {denied.error}")
    return options


def _add_note(parser: argparse.ArgumentParser, note: str) -> None:
    parser.epilog = f"{parser.epilog or ''} {note}".strip()


def _plugin_settings(words: Sequence[str]) -> PluginSettings:
    wanted = {spec.name for spec in all_specs() if spec.owner == "plugins"} | {"config"}
    parser = Parser(add_help=False)
    add_settings(parser, skip={spec.name for spec in all_specs()} - wanted)
    found, _ = parser.parse_known_args(list(words))
    return resolve_settings(vars(found)).plugins


def _may_add(plugin: Plugin) -> bool:
    return plugin.facts.hooks is None or HOOK in plugin.facts.hooks


class _OwnedActions(list[argparse.Action]):
    """A parser's actions; each is noted with the plugin whose code added it. Groups share it."""

    def __init__(self) -> None:
        super().__init__()
        self.owned: list[tuple[Plugin, argparse.Action, tuple[str, ...]]] = []

    def append(self, action: argparse.Action) -> None:
        owner = running()
        assert owner is not None, "only hooks add to this parser"
        self.owned.append((owner, action, tuple(action.option_strings)))
        super().append(action)


class _Collector:
    def __init__(self, parser: argparse.ArgumentParser, host: Host) -> None:
        self.parser = parser
        self.host = host
        self.own = set(options_of(parser))
        self.result = PluginOptions()

    def collect(self) -> PluginOptions:
        # A name that is taken is found here, where both owners are known: argparse must not
        # raise inside the second one's code.
        scratch = argparse.ArgumentParser(
            prog="server run", add_help=False, allow_abbrev=False, conflict_handler="resolve"
        )
        actions = _OwnedActions()
        for holder in (scratch, *scratch._action_groups):
            holder._actions = actions
        self.host.calls.cli_options(scratch)
        for owner, action, options in actions.owned:
            if owner.state == "active":
                fault = self._take(owner, action, options)
                if fault is not None:
                    self._put_out(owner, fault)
        self.result.denied.extend(self.host.failures())
        self._check_conflicts()
        self._move()
        self._keep_exclusions(scratch)
        return self.result

    def _put_out(self, plugin: Plugin, fault: str) -> None:
        self.host.deny(Denied(plugin.identity, "cli", "register", f"{HOOK} {fault}"))
        self.result.added = [added for added in self.result.added if added.plugin is not plugin]

    def _take(self, plugin: Plugin, action: argparse.Action, given: tuple[str, ...]) -> str | None:
        """Note the option; or say why it can be none."""
        if not given:
            return f"added the positional argument '{action.dest}'; expected an option"
        if type(action).__module__ != _OF_PYTHON:
            return f"gave {given[0]} an action of its own; expected one of argparse's"
        options = tuple(option.replace("_", "-") for option in given)
        before = [added.options for added in self.result.added if added.plugin is plugin]
        for option in options:
            if any(option in others for others in before):
                return f"added {option} twice"
            if _NAME.fullmatch(option) is None:
                return f"added {option!r}; expected letters, digits and hyphens after one or two -"
            if option in self.own:
                return f"added {option}, which is an option of the program itself"
        try:
            with enter(plugin):  # a help text may raise when it is shown
                if action.help:
                    argparse.HelpFormatter("server")._expand_help(action)
            default = _convert(action, action.default)
        except caught() as error:
            return f"added {options[0]}, whose help or default fails: {describe_error(error)}"
        self.result.added.append(_Added(plugin, action, options, action.dest, default))
        return None

    def _check_conflicts(self) -> None:
        owners: dict[str, Plugin] = {}
        for added in self.result.added:
            for option in added.options:
                other = owners.setdefault(option, added.plugin)
                if other is not added.plugin:
                    raise PluginConflictError(
                        f"{other.identity} ({other.file}) and {added.plugin.identity} "
                        f"({added.plugin.file}) both add the option {option}; leave one out with "
                        "--disable-plugins"
                    )

    def _move(self) -> None:
        groups: dict[Plugin, Any] = {}
        for added in self.result.added:
            if added.plugin not in groups:
                title = f"Plugin {added.plugin.identity}"
                groups[added.plugin] = self.parser.add_argument_group(title, _ELSEWHERE)
            _prepare(added)
            groups[added.plugin]._add_action(added.action)

    def _keep_exclusions(self, scratch: argparse.ArgumentParser) -> None:
        moved = [added.action for added in self.result.added]
        for exclusive in scratch._mutually_exclusive_groups:
            members = [action for action in exclusive._group_actions if action in moved]
            if members:
                kept = self.parser.add_mutually_exclusive_group(required=exclusive.required)
                kept._group_actions.extend(members)


def _prepare(added: _Added) -> None:
    """Make an action fit for the real parser: its own place for the value, absent if it was not
    given; its conversion guarded."""
    action = added.action
    action.option_strings = list(added.options)
    if action.metavar is None and action.choices is None and action.nargs != 0:
        action.metavar = added.key.upper()
    if action.help is not None and action.help is not argparse.SUPPRESS:
        shown = str(action.default).replace("%", "%%")
        action.help = action.help.replace("%(default)s", shown).replace("%(dest)s", added.key)
    if action.dest is not argparse.SUPPRESS:
        action.dest = f"{added.plugin.identity} {added.key}"
    action.default = argparse.SUPPRESS
    if callable(action.type):
        action.type = _guarded(added.plugin, action.type)


def _guarded(plugin: Plugin, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def converted(text: str) -> Any:
        try:
            with enter(plugin):
                return convert(text)
        except (argparse.ArgumentTypeError, TypeError, ValueError):
            raise  # argparse tells the user that the value is wrong
        except caught() as error:
            message = f"an option's type raised {describe_error(error)}"
            raise PluginError(plugin.identity, "run", message) from error

    converted.__name__ = getattr(convert, "__name__", "text")
    return converted


def _convert(action: argparse.Action, default: Any) -> Any:
    """A default as argparse would give it: texts are read as if they had been given."""
    if default is argparse.SUPPRESS:
        return None
    return action.type(default) if isinstance(default, str) and callable(action.type) else default


def _section_of(plugin: Plugin, config: Mapping[str, Any]) -> str:
    return next((key for key in config if matches(key.strip(), plugin)), plugin.identity)


def _plain(added: _Added, value: Any) -> Any:
    try:
        return msgspec.to_builtins(value)
    except caught() as error:
        raise PluginError(
            added.plugin.identity,
            "run",
            f"{added.options[-1]} gives a {type(value).__name__}, which other processes cannot be "
            "sent; expected text, numbers, truth values, lists or dictionaries of them",
        ) from error
