"""``Metadata``: typed access to a GGUF file's keys; a wrong one is refused by its name."""

from __future__ import annotations

import math
from typing import Any

from .errors import ModelFileError
from .gguf import GGUFFile


class Metadata:
    """Keys are looked up under ``prefix``, which is a family's name and a dot, or nothing.

    Every method raises ``ModelFileError`` with file, key and what was expected.
    """

    def __init__(self, file: GGUFFile, prefix: str = "") -> None:
        self._file = file
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._prefix + key in self._file.metadata

    def fail(self, key: str, what: str) -> ModelFileError:
        return ModelFileError(f"{self._file.path}: metadata key {self._prefix + key!r} {what}")

    def _get(self, key: str, default: Any, what: str) -> Any:
        value = self._file.metadata.get(self._prefix + key, default)
        if value is None:
            raise self.fail(key, f"({what}) is missing")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default, "text")
        if not isinstance(value, str):
            raise self.fail(key, "is no text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.fail(key, f"is {_shown(value)}; expected true or false")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 to 2^31 - 1."""
        value = self._get(key, default, "a whole number")
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not 0 <= value < 1 << 31:
            raise self.fail(key, f"is {_shown(value)}; expected one whole number")
        return int(value)

    def optional_count(self, key: str) -> int | None:
        return self.count(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(key, default, "a number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0:
            raise self.fail(key, f"is {_shown(value)}; expected a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def values(self, key: str, kind: type) -> list[Any]:
        """A list that is not empty; the format gives all its elements one type."""
        values = self._get(key, None, f"a list of {kind.__name__}")
        if not isinstance(values, list) or not values or not isinstance(values[0], kind):
            raise self.fail(key, f"is no list of {kind.__name__}")
        return values


def _shown(value: Any) -> str:
    return "a list" if isinstance(value, list) else repr(value)[:80]
