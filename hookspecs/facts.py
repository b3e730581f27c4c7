"""``hookserve.toml``: what a plugin package says about itself, read without importing it.

Finding the file and acting on it is ``discovery``'s.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import HostError, did_you_mean
from .plugin import Facts
from .types import API_VERSION, ROLES
from .versions import VersionRangeError, in_range

FILE_NAME = "hookserve.toml"

_KEYS = ("api", "roles", "before", "after", "hooks", "commands")
_BUILTIN_KEYS = (*_KEYS, "module", "essential")
_ADAPTER_KEYS = ("module", "prefix")


class FactsError(HostError):
    """A ``hookserve.toml`` that cannot be read; the message names file and key."""


def read_table(path: Path) -> dict[str, Any]:
    """The file's contents.

    Raises:
        FactsError: if it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FactsError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise FactsError(f"{path}: cannot be read: {error.strerror}") from error


def entry_facts(table: Mapping[str, Any], name: str, where: str) -> Facts:
    """What the file says about the entry point ``name``; its own table wins over the file's.

    Raises:
        FactsError: at an unknown key or a value of the wrong kind.
    """
    entries = table.get("entry", {})
    if not isinstance(entries, Mapping):
        raise FactsError(f"{where}: 'entry' must be a table of tables, [entry.NAME]")
    own = entries.get(name, {})
    if not isinstance(own, Mapping):
        raise FactsError(f"{where}: 'entry.{name}' must be a table")
    common = {key: value for key, value in table.items() if key != "entry"}
    _check_keys(common, _KEYS, where)
    _check_keys(own, _KEYS, f"{where}: [entry.{name}]")
    return _facts({**common, **own}, where)


def builtin_facts(own: Mapping[str, Any], name: str, where: str) -> tuple[Facts, str]:
    """A built-in entry's facts and the name of its module in ``hookserve.plugins_builtin``.

    Raises:
        FactsError: at an unknown key or a value of the wrong kind.
    """
    label = f"{where}: [entry.{name}]"
    _check_keys(own, _BUILTIN_KEYS, label)
    facts = _facts(own, label)
    essential = own.get("essential", False)
    if not isinstance(essential, bool):
        raise FactsError(f"{label}: 'essential' must be true or false")
    return dataclasses.replace(facts, essential=essential), str(own.get("module", name))


def adapter_facts(own: Any, name: str, where: str) -> tuple[str, str]:
    """An adapter's module in ``hookserve.plugins_builtin``, and the prefix of its groups.

    Raises:
        FactsError: at an unknown key or a value of the wrong kind.
    """
    label = f"{where}: [adapter.{name}]"
    if not isinstance(own, Mapping):
        raise FactsError(f"{label} must be a table")
    _check_keys(own, _ADAPTER_KEYS, label)
    for key in _ADAPTER_KEYS:
        if not isinstance(own.get(key), str):
            raise FactsError(f"{label}: '{key}' must be a text")
    return own["module"], own["prefix"]


def range_fault(facts: Facts, host_version: str | None) -> str | None:
    """Say why the plugin does not fit this host's versions, or ``None``."""
    try:
        if not in_range(API_VERSION, facts.api):
            return f"wants hook API {facts.api}, this host has {API_VERSION}"
        if host_version is not None and not in_range(host_version, facts.requires):
            return f"requires hookserve {facts.requires}, this is {host_version}"
    except VersionRangeError as error:
        return str(error)
    return None


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise FactsError(f"{where}: unknown key '{key}'{did_you_mean(key, list(known))}")


def _facts(table: Mapping[str, Any], where: str) -> Facts:
    api = table.get("api", "")
    if not isinstance(api, str):
        raise FactsError(f"{where}: 'api' must be text such as '>=1,<2'")
    facts = Facts(
        api=api, before=_texts(table, "before", where), after=_texts(table, "after", where)
    )
    if "roles" in table:
        facts = dataclasses.replace(facts, roles=_roles(table, where))
    if "hooks" in table:
        facts = dataclasses.replace(facts, hooks=_texts(table, "hooks", where))
    return dataclasses.replace(facts, commands=_texts(table, "commands", where))


def _roles(table: Mapping[str, Any], where: str) -> frozenset[Any]:
    roles = _texts(table, "roles", where)
    for role in roles:
        if role not in ROLES:
            raise FactsError(f"{where}: unknown role '{role}'{did_you_mean(role, ROLES)}")
    if not roles:
        raise FactsError(f"{where}: 'roles' is empty; expected some of {', '.join(ROLES)}")
    return frozenset(roles)


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FactsError(f"{where}: '{key}' must be a list of texts")
    return tuple(item.strip() for item in value)
