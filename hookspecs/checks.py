"""What the host accepts as a plugin: its hook implementations, found and checked before anything
is registered. Nothing of the plugin is run, properties least of all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from importlib.machinery import PathFinder
from types import FunctionType, ModuleType
from typing import Any

from .errors import HostError, did_you_mean
from .markers import IMPL_ATTRIBUTE, HookInfo
from .plugin import Implementation

Specs = Mapping[str, HookInfo]


class RefusedError(HostError):
    """A plugin that breaks a rule of registration; the message has hook, file and line."""


def implementations(
    plugin: object, specs: Specs, *, may_have_none: bool = False
) -> list[Implementation]:
    """The plugin's checked hook implementations, by name.

    Args:
        may_have_none: it has registered something by a call.

    Raises:
        RefusedError: at the first that breaks a rule, or if there is none.
    """
    found = []
    for name in dir(plugin):
        static = inspect.getattr_static(plugin, name, None)
        if isinstance(static, property | functools.cached_property):
            function = static.fget if isinstance(static, property) else static.func
            if _options(function) is not None:
                raise RefusedError(
                    f"{name} is a property; a hook must be a function{_at(function)}"
                )
            continue
        raw = static.__func__ if isinstance(static, staticmethod | classmethod) else static
        options = _options(raw)
        if options is not None:
            found.append(_check(plugin, name, raw, options, specs))
        elif isinstance(inspect.getattr_static(raw, IMPL_ATTRIBUTE, None), dict):
            raise RefusedError(f"{name} is marked, but is no function: {type(raw).__qualname__}")
    if not found and not may_have_none:
        raise RefusedError(
            "has no hook: no function of it is marked with "
            f"@hookserve.hookspecs.hookimpl{_near_misses(plugin, specs)}"
        )
    _check_once(found)
    return found


def _check_once(found: list[Implementation]) -> None:
    """One function for each hook: reports and metrics tell of a plugin's hook as one."""
    where: dict[str, str] = {}
    for each in found:
        if each.info.name in where:
            raise RefusedError(
                f"{each.info.name} is implemented twice: at {where[each.info.name]} and at "
                f"{each.where}"
            )
        where[each.info.name] = each.where


def unmarked_hooks(plugin: object, specs: Specs) -> list[str]:
    """Functions of a module that have a hook's name but no marker: most likely forgotten."""
    if not isinstance(plugin, ModuleType):
        return []
    return [
        f"{name} has the name of a hook and no @hookimpl, so it is never called{_at(function)}"
        for name, function in vars(plugin).items()
        if name in specs
        and isinstance(function, FunctionType)
        and function.__module__ == plugin.__name__
        and _options(function) is None
    ]


def _options(function: Any) -> Mapping[str, Any] | None:
    if not inspect.isroutine(function):
        return None
    options = getattr(function, IMPL_ATTRIBUTE, None)
    return options if isinstance(options, dict) else None


def _check(
    plugin: object, name: str, raw: Any, options: Mapping[str, Any], specs: Specs
) -> Implementation:
    hook = str(options.get("specname") or name)
    where = _at(raw)
    if options.get("wrapper") or options.get("hookwrapper"):
        raise RefusedError(f"{hook} is a wrapper; hooks of this host are plain functions{where}")
    if hook not in specs:
        raise RefusedError(f"there is no hook '{hook}'{did_you_mean(hook, list(specs))}{where}")
    info = specs[hook]
    if options.get("buffer") and not info.may_buffer:
        raise RefusedError(f"{hook} does not pass text on, so it takes no buffer=True{where}")
    if inspect.iscoroutinefunction(raw) and not info.may_await:
        raise RefusedError(f"{hook} cannot wait; write it as a plain function{where}")
    may_yield = info.may_yield or info.call == "collect"
    if (inspect.isgeneratorfunction(raw) and not may_yield) or inspect.isasyncgenfunction(raw):
        raise RefusedError(f"{hook} has a 'yield', so its body would never run{where}")
    function = getattr(plugin, name)
    return Implementation(
        info=info,
        function=function,
        arguments=_arguments(hook, function, (*info.arguments, "ctx"), where),
        where=where.removeprefix(" at "),
        tryfirst=bool(options.get("tryfirst")),
        trylast=bool(options.get("trylast")),
        buffer=bool(options.get("buffer")),
    )


def _arguments(hook: str, function: Any, offered: tuple[str, ...], where: str) -> tuple[str, ...]:
    wanted = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise RefusedError(
                f"{hook} takes {stars}{parameter.name}; name the arguments that it wants of "
                f"({', '.join(offered)}){where}"
            )
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise RefusedError(
                f"{hook} takes '{parameter.name}' by keyword only; arguments are given by "
                f"position{where}"
            )
        if parameter.name not in offered:
            raise RefusedError(
                f"{hook} has no argument '{parameter.name}'; it offers ({', '.join(offered)})"
                f"{where}"
            )
        wanted.append(parameter.name)
    return tuple(wanted)


def _near_misses(plugin: object, specs: Specs) -> str:
    """What the author of a plugin without a hook may have meant."""
    unmarked = unmarked_hooks(plugin, specs)
    if unmarked:
        return f"; {unmarked[0]}"
    if not isinstance(plugin, ModuleType):
        return ""
    classes = [
        name
        for name, value in vars(plugin).items()
        if isinstance(value, type)
        and value.__module__ == plugin.__name__
        and any(_options(function) is not None for function in vars(value).values())
    ]
    if not classes:
        return ""
    # What was given as a file need not be importable; a class of a module must.
    is_found = PathFinder.find_spec(plugin.__name__.partition(".")[0]) is not None
    return (
        f"; its class {classes[0]} has some: to use that, name {plugin.__name__}:{classes[0]}"
        f"{'' if is_found else ', with the folder of its file in PYTHONPATH'}"
    )


def _at(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" at {code.co_filename}:{code.co_firstlineno}"
