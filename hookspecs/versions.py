"""Version ranges such as ``">=1,<2"``: parsing and comparing release numbers, nothing more.

Pre-release and local parts are ignored: a hook contract has none.
"""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"^(~=|===?|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?[a-z0-9.+-]*$")
_RELEASE = re.compile(r"^v?(\d+(?:\.\d+)*)")


class VersionRangeError(ValueError):
    """A range that cannot be read."""


def release(version: str) -> tuple[int, ...]:
    """``"1.2.0rc1"`` is ``(1, 2)``: trailing zeros do not count.

    Raises:
        VersionRangeError: if the text does not start with a number.
    """
    found = _RELEASE.match(version.strip())
    if found is None:
        raise VersionRangeError(f"'{version}' is no version; expected numbers such as 1.2")
    return _numbers(found.group(1))


def in_range(version: str, wanted: str) -> bool:
    """Whether ``version`` satisfies every clause of ``wanted``; an empty range accepts all.

    Raises:
        VersionRangeError: if a clause cannot be read.
    """
    have = release(version)
    clauses = [clause.strip() for clause in wanted.split(",") if clause.strip()]
    return all(_satisfies(have, clause, wanted) for clause in clauses)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _satisfies(have: tuple[int, ...], clause: str, whole: str) -> bool:
    found = _CLAUSE.match(clause)
    if found is None:
        raise VersionRangeError(
            f"version range '{whole}' cannot be read at '{clause}'; expected such as '>=1,<2'"
        )
    operator, text, wildcard = found.groups()
    given = tuple(int(part) for part in text.split("."))
    want = _numbers(text)
    if wildcard:
        same = _padded(have, len(given)) == given
        return same if operator in ("==", "===") else not same
    if operator == "~=":
        return have >= want and _padded(have, len(given) - 1) == given[:-1]
    return {
        "==": have == want,
        "===": have == want,
        "!=": have != want,
        "<": have < want,
        "<=": have <= want,
        ">": have > want,
        ">=": have >= want,
    }[operator]


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (numbers + (0,) * length)[:length]
