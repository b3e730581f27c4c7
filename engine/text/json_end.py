"""``JsonEnd``: where a JSON value ends in a text that may still grow.

Brackets and strings alone are looked at, each character once. Whether what is between them is JSON
too is the decoder's to say.
"""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r"[\s,:0-9a-zA-Z+.\-]*")
_INSIDE = re.compile(r'[^"\\]*')
_CLOSES = {"{": "}", "[": "]"}


class JsonEnd:
    """Push the pieces of a text that begins with an object or a list.

    Attributes:
        is_bad: it cannot become JSON any more, whatever comes.
    """

    def __init__(self) -> None:
        self.is_bad = False
        self._open: list[str] = []
        self._is_in_string = False
        self._is_escaped = False

    def push(self, text: str, start: int = 0) -> int | None:
        """Look at ``text[start:]``; the index behind the value, or ``None``: it has no end yet."""
        at = start
        while at < len(text) and not self.is_bad:
            if self._is_in_string:
                at = self._pass_string(text, at)
                continue
            match = _OUTSIDE.match(text, at)
            assert match is not None
            at = match.end()
            if at == len(text):
                break
            self._take(text[at])
            at += 1
            if not self._open and not self._is_in_string and not self.is_bad:
                return at
        return None

    def _pass_string(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        match = _INSIDE.match(text, at)
        assert match is not None
        at = match.end()
        if at < len(text):
            self._is_escaped = text[at] == "\\"
            self._is_in_string = self._is_escaped
            at += 1
        return at

    def _take(self, char: str) -> None:
        if char in _CLOSES:
            self._open.append(_CLOSES[char])
        elif char == '"' and self._open:
            self._is_in_string = True
        elif not self._open or char != self._open.pop():
            self.is_bad = True


def json_end(text: str, start: int) -> int | None:
    """The index behind the object or list that begins at ``start``; ``None``: it goes on.

    Raises:
        ValueError: it cannot become JSON, whatever comes.
    """
    end = JsonEnd()
    found = end.push(text, start)
    if end.is_bad:
        raise ValueError("no JSON")
    return found
