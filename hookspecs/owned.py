"""``Owned``: a value and the plugin that it came from."""

from __future__ import annotations

from typing import Any, NamedTuple

from .plugin import Plugin


class Owned(NamedTuple):
    owner: Plugin
    value: Any
