"""How long a text becomes by an operation of a chat template, told before it is made.

A loop or a call can be timed between its turns; one operation that makes gigabytes cannot, so each
operation that can make much of little is measured first. What is too much is ``chat_template``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

GROWING_METHODS = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "replace", "format", "format_map"}
)
"""Methods of ``str``; ``join`` is measured by ``counted_items``."""
GROWING_FILTERS = frozenset({"center", "indent", "replace", "format"})

LARGEST_ARGUMENTS = {"batch": 10_000, "round": 300, "slice": 10_000, "tojson": 100}
"""Filters that make as much as an argument says, by the largest number (or longest text)."""

_WIDTH = re.compile(r"\d{1,18}")
_WIDTH_FROM_ARGUMENT = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*\{")


def largest_argument(values: Iterable[Any]) -> int:
    """The largest number among arguments, or the length of the longest text."""
    largest = 0
    for value in values:
        if isinstance(value, int):
            largest = max(largest, value)
        elif isinstance(value, str):
            largest = max(largest, len(value))
        elif isinstance(value, list | tuple):
            largest = max(largest, largest_argument(value))
    return largest


def grown_chars(name: str, text: str, values: Iterable[Any]) -> int:
    """Characters, at most, that the method or filter makes of ``text``.

    Args:
        values: its other arguments, by position and by name.
    """
    values = list(values)
    if name in ("format", "format_map"):
        return formatted_chars(text, values)
    if name == "replace":
        old, new = ([value for value in values if isinstance(value, str)] + ["", ""])[:2]
        return len(text) + (text.count(old) if old else len(text) + 1) * len(new)
    widths = [value for value in values if isinstance(value, int)]
    num_parts = 1 + text.count("\n") + text.count("\t")
    return len(text) + num_parts * max(widths, default=0)


def formatted_chars(template: str, values: Iterable[Any]) -> int:
    """For ``%`` and ``format``: the widths that the template states, and what is put in."""
    values = list(values)
    widths = sum(int(digits) for digits in _WIDTH.findall(template))
    if _WIDTH_FROM_ARGUMENT.search(template):
        widths += sum(value for value in values if isinstance(value, int))
    num_fields = template.count("%") + template.count("{")
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    return len(template) + widths + num_fields * longest


def counted_items(items: Iterable[Any], attribute: Any = None) -> Iterator[tuple[Any, int]]:
    """Each item that is to be joined with the characters of all up to it."""
    num_chars = 0
    for item in items:
        shown = item.get(attribute) if isinstance(item, Mapping) and attribute else item
        num_chars += len(shown) if isinstance(shown, str) else 0
        yield item, num_chars
