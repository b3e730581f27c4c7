"""``--prefer KIND:NAME=IDENTITY``: which plugin has a name that several want.

An entry that decides nothing is an error: most likely it is misspelt. Who wins a name is
``registry``'s, who sets an argument of the engine ``config_calls``'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .declarations import KINDS, NOT_CHOSEN_BY_NAME
from .errors import PluginSelectionError, did_you_mean
from .op_names import canonical
from .plugin import Plugin
from .registry import Registry
from .selection import select

ENGINE_CONFIG = "engine_config"
"""The kind whose names are the engine's arguments."""

Preferences = Mapping[str, Mapping[str, Plugin]]
"""Kind to name to plugin."""


def read_preferences(entries: Iterable[str], plugins: Sequence[Plugin]) -> Preferences:
    """
    Raises:
        PluginSelectionError: at an entry of another form, an unknown kind or plugin, or two that
            say different things of one name.
    """
    kinds = [kind for kind in (*KINDS, ENGINE_CONFIG) if kind not in NOT_CHOSEN_BY_NAME]
    chosen: dict[str, dict[str, Plugin]] = {}
    for entry in entries:
        left, equals, identity = entry.strip().rpartition("=")
        kind, colon, name = (part.strip() for part in left.partition(":"))
        if not (equals and colon and kind and name):
            raise PluginSelectionError(f"--prefer: '{entry}' is not of the form KIND:NAME=IDENTITY")
        if kind in NOT_CHOSEN_BY_NAME:
            raise PluginSelectionError(
                f"--prefer: '{kind}' is not chosen by name: every one of them is used; leave one "
                "out with --disable-plugins"
            )
        if kind not in kinds:
            raise PluginSelectionError(
                f"--prefer: unknown kind '{kind}'{did_you_mean(kind, kinds)}"
            )
        plugin = select(identity, plugins, "--prefer")
        other = chosen.setdefault(kind, {}).setdefault(canonical(kind, name), plugin)
        if other is not plugin:
            raise PluginSelectionError(
                f"--prefer: {kind}:{name} is given to {other.identity} and to {plugin.identity}; "
                "drop one of the two"
            )
    return chosen


def check_preferences(preferred: Mapping[str, Plugin], registry: Registry) -> None:
    """See that each preferred plugin claims its name. One that is not at work here claims nothing,
    and must not stop a start by that.

    Raises:
        PluginSelectionError: with the nearest name, or with those who do claim it.
    """
    claims = registry.all_claims()
    for name, plugin in preferred.items():
        owners = [claim.owner for claim in claims if claim.name == name]
        if plugin.state != "active" or plugin.identity in owners:
            continue
        if owners:
            raise PluginSelectionError(
                f"--prefer: {plugin.identity} does not declare {registry.kind} '{name}'; "
                f"{' and '.join(owners)} do"
            )
        known = list(dict.fromkeys(claim.name for claim in claims))
        raise PluginSelectionError(
            f"--prefer: nobody declares {registry.kind} '{name}'{did_you_mean(name, known)}"
        )


def check_fields(
    preferred: Mapping[str, Plugin], fields: Iterable[str], asked: Iterable[Plugin]
) -> None:
    """The same for the engine's arguments.

    Args:
        asked: the plugins that implement the hook ``engine_config``.

    Raises:
        PluginSelectionError: an argument that does not exist, with the nearest; or a plugin that
            changes none.
    """
    known, implementing = list(fields), list(asked)
    for name, plugin in preferred.items():
        if name not in known:
            near = did_you_mean(name, known)
            raise PluginSelectionError(f"--prefer: the engine has no argument '{name}'{near}")
        if plugin.state == "active" and plugin not in implementing:
            raise PluginSelectionError(
                f"--prefer: {plugin.identity} has no hook engine_config, so it sets no '{name}'"
            )
