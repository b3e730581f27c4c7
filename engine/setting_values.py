"""One setting's value, read from a text or checked as a file gave it.

Which setting a value belongs to, and which of several values wins, is the server's, and so are
keys, which are never shown.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError, HookserveError, UsageError
from .setting import Setting

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(i?[bB])?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


@dataclass(frozen=True)
class Origin:
    """Where a value came from: ``default``, or a kind and the flag, variable or file."""

    kind: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.key}".rstrip()


@dataclass(frozen=True)
class Spec:
    """A setting with its names: everything about it but its value."""

    name: str
    owner: str
    setting: Setting
    kind: str
    default: Any

    @property
    def key(self) -> str:
        return self.setting.flag or self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        return "--" + self.key

    @property
    def env(self) -> str:
        return self.setting.env or "HOOKSERVE_" + self.name.upper()


def derive_kind(hint: Any) -> str:
    """The kind of a field from its type: ``int | None`` is ``whole``, a tuple is a ``list``."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    hint = typing.get_origin(hint) or hint
    kinds = {
        str: "text",
        int: "whole",
        float: "number",
        bool: "switch",
        tuple: "list",
        dict: "json",
    }
    return kinds[hint]


def read_text(spec: Spec, text: str, origin: Origin) -> Any:
    """Read the text of a flag or an environment variable.

    Raises:
        UsageError, ConfigError: with the key, its origin and what was expected.
    """
    setting = spec.setting
    stripped = text.strip()
    if stripped.lower() in setting.unset:
        return None
    if spec.kind == "switch":
        if stripped.lower() in _TRUE + _FALSE:
            return stripped.lower() in _TRUE
        raise wrong_value(spec, text, origin, "true or false")
    if spec.kind == "list":
        return _read_list(spec, stripped, origin)
    if spec.kind == "json":
        return _read_json(spec, stripped, origin)
    if spec.kind == "text":
        return _choose(spec, text, origin)
    return _in_range(spec, _read_number(spec, stripped, origin), origin)


def check_value(spec: Spec, value: Any, origin: Origin) -> Any:
    """Check a value that a file gave with its own type; texts are read as flags are."""
    if isinstance(value, str):
        return read_text(spec, value, origin)
    if spec.kind == "switch" and isinstance(value, bool):
        return value
    if isinstance(value, list) and all(isinstance(v, str) for v in value) and spec.kind == "list":
        return _names(value)
    if spec.kind == "json" and isinstance(value, dict):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_whole = isinstance(value, int) and spec.kind in ("whole", "bytes", "tokens")
        if is_whole or spec.kind == "number":
            return read_text(spec, str(value), origin)
    raise wrong_value(spec, value, origin, _expected(spec))


def _read_number(spec: Spec, text: str, origin: Origin) -> int | float:
    try:
        if spec.kind == "number":
            number = float(text)
            if number != number or number in (float("inf"), float("-inf")):
                raise wrong_value(spec, text, origin, _expected(spec))
            return number
        if spec.kind == "whole" or text.lstrip("-").isdigit():
            return int(text)
    except ValueError:
        raise wrong_value(spec, text, origin, _expected(spec)) from None
    match = _BYTES.fullmatch(text)
    if match is None or (spec.kind == "tokens" and match[3]):
        raise wrong_value(spec, text, origin, _expected(spec))
    digits, scale, unit = match.groups()
    # Without a unit, a capital is a power of 1024 and a small letter of 1000, as elsewhere.
    binary = unit.startswith("i") if unit else scale.isupper()
    try:
        return int(float(digits) * (1024 if binary else 1000) ** _POWERS[scale.lower()])
    except OverflowError:
        raise wrong_value(spec, text, origin, _expected(spec)) from None


def _in_range(spec: Spec, number: int | float, origin: Origin) -> int | float:
    low, high = spec.setting.minimum, spec.setting.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        raise wrong_value(spec, number, origin, _expected(spec))
    return number


def _read_list(spec: Spec, text: str, origin: Origin) -> tuple[str, ...]:
    if text.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError):
            items = None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise wrong_value(spec, text, origin, _expected(spec))
    else:
        items = text.split(",")
    return _names(items)


def _names(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(item.strip() for item in items if item.strip())


def _read_json(spec: Spec, text: str, origin: Origin) -> dict[str, Any]:
    if text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as file:
                content = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise wrong_value(spec, text, origin, f"a file that can be read ({error})") from error
    else:
        content = text
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise wrong_value(spec, text, origin, _expected(spec))
    return value


def _choose(spec: Spec, text: str, origin: Origin) -> str:
    choices = spec.setting.choices
    if not choices:
        return text
    wanted = text.strip().lower()
    wanted = spec.setting.synonyms.get(wanted, wanted)
    for choice in choices:
        if choice.lower() == wanted:
            return choice
    raise wrong_value(spec, text, origin, _expected(spec))


def _expected(spec: Spec) -> str:
    setting = spec.setting
    if setting.choices:
        return "one of " + ", ".join(setting.choices)
    low, high = (
        None if bound is None else f"{bound:g}" for bound in (setting.minimum, setting.maximum)
    )
    limits = f" from {low} to {high}" if high else f" of at least {low}" if low else ""
    return {
        "whole": "a whole number" + limits,
        "number": "a number" + limits,
        "tokens": f"a whole number{limits}, such as 4096, 4k or 4K",
        "bytes": "a number of bytes, such as 536870912 or 512MiB",
        "list": "names with commas between them",
        "json": "a JSON object, or @FILE with one",
        "switch": "true or false",
        "text": "a text",
    }[spec.kind]


def wrong_value(spec: Spec, value: Any, origin: Origin, expected: str) -> HookserveError:
    """The error that says so; a key is not shown."""
    shown = "(not shown)" if spec.kind == "secret" and value else repr(value)
    shown = shown if len(shown) <= 200 else shown[:197] + "..."
    if origin.kind == "flag":
        return UsageError(f"{spec.flag} {shown}: expected {expected}")
    return ConfigError(f"{spec.key} {shown} (from {origin}): expected {expected}")
