"""A plugin's own section of ``--plugin-config``, converted by the schema that it states.

What is wrong with the section is the operator's to mend and stops the start; what is wrong with
the schema is the plugin's fault. Which plugin a section is for is ``selection``'s, when schemas are
asked for ``host``'s.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from .context import enter
from .errors import HostError, PluginError, describe_error, did_you_mean
from .notify_loop import caught
from .plugin import Plugin

_AT = re.compile(r" - at `\$(.*)`$")
"""Where msgspec puts the path of a wrong value: ``$.limits[2]``, or ``key in $.limits``."""


class PluginConfigError(HostError):
    """What the operator gave a plugin in ``--plugin-config`` is not what the plugin takes."""


def convert_config(plugin: Plugin, schema: object) -> msgspec.Struct:
    """The plugin's section as an instance of the schema; its defaults where there is no section.

    Args:
        schema: what the hook ``settings_schema`` returned.

    Raises:
        PluginConfigError: the operator's section does not fit; with plugin, key, what was
            expected, and the nearest key.
        PluginError: the schema is no struct, nothing can be converted to it, or it cannot do
            without a section and there is none.
    """
    if not (isinstance(schema, type) and issubclass(schema, msgspec.Struct)):
        raise _broken(
            plugin, f"returned {repr(schema)[:120]}; expected a msgspec.Struct class or None"
        )
    section = plugin.config
    try:
        with enter(plugin):  # annotations, and a struct that is made, may run the plugin's code
            unknown = next(_unknown_keys(section, schema, ""), None)
            if unknown is None:
                return msgspec.convert(dict(section), schema)
    except msgspec.ValidationError as error:
        message = f"{_where(plugin)}: {_reason(str(error), schema)}"
    except caught() as error:
        said = f"gave {schema.__qualname__}, which takes no section: {describe_error(error)}"
        raise _broken(plugin, said) from error
    else:
        path, key, known = unknown
        message = f"{_where(plugin)}: unknown key '{path}'{did_you_mean(key, known)}"
    if section:
        raise PluginConfigError(message)
    raise PluginError(plugin.identity, "register", f"{message}; it needs a section there")


def _broken(plugin: Plugin, what: str) -> PluginError:
    return PluginError(plugin.identity, "register", f"settings_schema {what}")


def _where(plugin: Plugin) -> str:
    return f"--plugin-config: the section of {plugin.identity}"


def _reason(text: str, schema: type[msgspec.Struct]) -> str:
    """``limits.high: expected 'int', got 'str'`` out of msgspec's sentence."""
    found = _AT.search(text)
    said = (text[: found.start()] if found else text).replace("`", "'")
    said = said.replace("Object missing required field", "lacks the key")
    said = said.replace("Object contains unknown field", "unknown key")
    said = said[:1].lower() + said[1:]
    path = found.group(1).strip(".") if found else ""
    if said.startswith("invalid enum value"):
        said += _choices(schema, path)
    return f"{path}: {said}" if path else said


def _choices(schema: type[msgspec.Struct], path: str) -> str:
    """What a key may be that has a few values only; msgspec does not say it."""
    hint: Any = schema
    for key in re.sub(r"\[.*?\]", "", path).split("."):
        structs = list(_structs_in(hint))
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(structs[0])}
        hint = fields.get(key) if structs else None
    known = [part for part in _parts(hint) if isinstance(part, str | int)]
    return f"; expected one of {', '.join(map(repr, known))}" if known else ""


def _parts(hint: Any) -> Iterator[Any]:
    """The values of every ``Literal`` and ``Enum`` in an annotation."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield from (member.value for member in hint)
    elif get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from _parts(part)


def _unknown_keys(value: Any, hint: Any, at: str) -> Iterator[tuple[str, str, list[str]]]:
    """Path, last key and the known keys of each key that no struct there has. msgspec ignores
    them unless the struct itself says otherwise; a misspelt key must not be lost."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_keys(item, hint, f"{at}[{index}]")
    if not isinstance(value, Mapping):
        return
    structs = list(_structs_in(hint))
    for key, inner in value.items():
        path = f"{at}.{key}" if at else str(key)
        if len(structs) != 1:  # none, or one of several, which msgspec tells apart
            yield from _unknown_keys(inner, _values_of(hint), path)
            continue
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(structs[0])}
        if key in fields:
            yield from _unknown_keys(inner, fields[key], path)
        elif key != structs[0].__struct_config__.tag_field:
            yield path, str(key), list(fields)


def _values_of(hint: Any) -> Any:
    """Of what the values of a mapping are, where an annotation speaks of one."""
    if get_origin(hint) in (dict, Mapping):
        return get_args(hint)[1]
    parts = [_values_of(part) for part in get_args(hint)]
    return next((part for part in parts if part is not None), None)


def _structs_in(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that an annotation speaks of: itself, or of a union, a list, a tuple. The values
    of a mapping are left to the mapping."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    elif get_origin(hint) not in (dict, Mapping):
        for part in get_args(hint):
            yield from _structs_in(part)
