"""What of a text that still grows may become something else: a stop string, or a marker."""

from __future__ import annotations

from collections.abc import Sequence


def num_held(text: str, wanted: Sequence[str]) -> int:
    """Length of the longest end of the text that is the beginning of one of the wanted texts, and
    not all of it."""
    longest = 0
    for each in wanted:
        for length in range(min(len(each) - 1, len(text)), longest, -1):
            if text.endswith(each[:length]):
                longest = length
                break
    return longest
