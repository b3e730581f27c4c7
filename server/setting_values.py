"""One setting's value, read from a text or checked as a file gave it; keys of the server among
them. The others are read by ``engine.setting_values``.

Which setting a value belongs to, and which of several values wins, is ``settings``'.
"""

from __future__ import annotations

import re
from typing import Any

from hookserve.engine import setting_values
from hookserve.engine.setting_values import Origin, Spec, derive_kind, wrong_value

from .secret import Secret

__all__ = ["Origin", "Spec", "check_value", "derive_kind", "read_text"]

_KEY = re.compile(r"[\x21-\x7e]+")
"""What can be sent behind ``Bearer`` in a header."""


def read_text(spec: Spec, text: str, origin: Origin) -> Any:
    """Read the text of a flag or an environment variable.

    Raises:
        UsageError, ConfigError: with the key, its origin and what was expected.
    """
    if spec.kind == "secret":
        return (_read_secret(spec, text, origin),)
    return setting_values.read_text(spec, text, origin)


def check_value(spec: Spec, value: Any, origin: Origin) -> Any:
    """Check a value that a file gave with its own type; texts are read as flags are."""
    if spec.kind != "secret":
        return setting_values.check_value(spec, value, origin)
    if isinstance(value, str):
        return read_text(spec, value, origin)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(dict.fromkeys(_read_secret(spec, text, origin) for text in value))
    raise wrong_value(spec, value, origin, _EXPECTED)


_EXPECTED = "a key of visible ASCII characters without spaces"


def _read_secret(spec: Spec, text: str, origin: Origin) -> Secret:
    """A key must not be empty: whoever gives an empty one meant to close the server."""
    if _KEY.fullmatch(text) is None:
        raise wrong_value(spec, text, origin, _EXPECTED)
    return Secret(text)
