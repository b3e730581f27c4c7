"""What plugins make of ``EngineArgs`` through the hook ``engine_config``, before anything is
decided: checked, each change logged with its owner, which is its source from then on.

What a platform changes afterwards is ``config_changes``'; who wins an argument is the hook's.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from .ecosystem_arguments import give_others, given_others
from .setting import Setting

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

    from .engine_args import EngineArgs

logger = logging.getLogger(__name__)

A = TypeVar("A", bound="EngineArgs")


def ask_plugins(args: A, host: Host) -> A:
    """The arguments as the plugins of the front want them; each plugin is asked once, however
    often the same arguments come here.

    Raises:
        hookserve.hookspecs.PluginConflictError: two plugins want different values.
        hookserve.hookspecs.RequiredPluginError: a plugin that must work failed.
        hookserve.hookspecs.PluginSelectionError: ``--prefer`` names no argument.
    """
    from hookserve.hookspecs.preferences import ENGINE_CONFIG, check_fields

    if args.plugins_asked:
        return args
    settings = _settings_of(type(args))
    preferred = host.preferred(ENGINE_CONFIG)
    guards = host.calls.hooks[ENGINE_CONFIG].guards
    check_fields(preferred, settings, [guard.plugin for guard in guards])
    if not guards:
        return args
    before = {name: getattr(args, name) for name in settings}
    found = host.calls.engine_config(
        before, accept=lambda changes: _checked(changes, settings), prefer=preferred
    )
    changed = {name: change for name, change in found.items() if change.value != before[name]}
    for name, change in changed.items():
        change.owner.engine_arguments.append(name)
        tell_change(change.owner.identity, name, before[name], change.value, args.sources.get(name))
    sources = {name: f"plugin {change.owner.identity}" for name, change in changed.items()}
    values: dict[str, Any] = {name: change.value for name, change in changed.items()}
    asked = dataclasses.replace(args, **values, sources={**args.sources, **sources})
    asked.plugins_asked = True
    give_others(asked, given_others(args))
    return asked


def _settings_of(kind: type[EngineArgs]) -> dict[str, tuple[Any, Setting]]:
    """Type and setting of each argument that an operator can give, by name."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for setting in getattr(hint, "__metadata__", ()):
            if isinstance(setting, Setting):
                found[name] = (hint.__origin__, setting)
    return found


def _checked(
    changes: Mapping[str, Any], settings: Mapping[str, tuple[Any, Setting]]
) -> dict[str, Any]:
    """
    Raises:
        ValueError: an argument that does not exist, with the nearest, or a value out of range.
        TypeError: a value of another type.
    """
    from hookserve.hookspecs.errors import did_you_mean

    checked = {}
    for name, value in changes.items():
        if name not in settings:
            near = did_you_mean(str(name), list(settings))
            raise ValueError(f"the engine has no argument {name!r}{near}")
        hint, setting = settings[name]
        try:
            checked[name] = msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            said = str(error).replace("`", "'")
            raise TypeError(f"{name} cannot be {value!r:.120}: {said}") from error
        _check_range(name, checked[name], setting)
    return checked


def _check_range(name: str, value: Any, setting: Setting) -> None:
    if setting.choices and value not in setting.choices:
        expected = "one of " + ", ".join(setting.choices)
    elif not isinstance(value, int | float) or isinstance(value, bool):
        return
    elif setting.minimum is not None and value < setting.minimum:
        expected = f"at least {setting.minimum:g}"
    elif setting.maximum is not None and value > setting.maximum:
        expected = f"at most {setting.maximum:g}"
    else:
        return
    raise ValueError(f"{name} cannot be {value!r:.120}; expected {expected}")


def tell_change(owner: str, name: str, before: Any, value: Any, origin: str | None) -> None:
    """What the operator said himself is worth a warning."""
    level = logging.INFO if origin is None else logging.WARNING
    came = "" if origin is None else f", from {origin}"
    logger.log(
        level, "plugin %s set %s to %.120r (it was %.120r%s)", owner, name, value, before, came
    )
