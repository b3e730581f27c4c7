"""Whose code stands where the host's own was, so that an error out of it is told with who put it
there, whoever's turn it was.

What a patch is, and when it is undone, is ``transaction``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple

PATCHED = "has put in the place of"
"""In every sentence about a patch."""


class Place(NamedTuple):
    """Where a plugin's code stands."""

    owner: str
    """Its identity."""
    label: str
    """``module:qualname`` of what it replaced."""


# By the identity of a code, as equal ones of two packages are not one; with the code itself, which
# keeps its identity from being another's.
_places: dict[int, tuple[CodeType, list[Place]]] = {}


def note_patch(owner: str, label: str, value: Any) -> None:
    """Keep whose function, or class of functions, ``value`` is, and what it stands for."""
    from .first_call import code_of  # the command line needs errors, and none of this

    for function in _functions_of(value):
        code = code_of(function)
        _places.setdefault(id(code), (code, []))[1].append(Place(owner, label))


def forget_patches(owner: str) -> None:
    """Of a plugin that is out."""
    for key, (code, places) in list(_places.items()):
        kept = [place for place in places if place.owner != owner]
        if kept:
            _places[key] = (code, kept)
        else:
            del _places[key]


def raised_in(error: BaseException) -> str | None:
    """Identity of the plugin of whose patch's code the error came, with none of the host's below
    it."""
    found = _innermost(error)
    return None if found is None or found[1] else found[0][0].owner


def passed_patch(error: BaseException) -> str | None:
    """In words, the innermost patch that the error came out of; ``None``: none."""
    found = _innermost(error)
    if found is None:
        return None
    places, is_deeper = found
    how = "raised below what" if is_deeper else "raised in what"
    return f"{how} {_whose(places)}"


def all_patches() -> str | None:
    """In words, who has replaced what in this process; ``None``: nobody."""
    by_owner: dict[str, list[Place]] = {}
    for _, places in _places.values():
        for place in places:
            by_owner.setdefault(place.owner, []).append(place)
    return ", ".join(f"what {_whose(places)}" for places in by_owner.values()) or None


def _whose(places: list[Place]) -> str:
    """One code may stand in several places, and nothing tells which of them was called."""
    labels = list(dict.fromkeys(place.label for place in places))
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return f"plugin {places[0].owner} {PATCHED} {labels[0]}{more}"


def _innermost(error: BaseException) -> tuple[list[Place], bool] | None:
    """The patch, and whether there is code of the host's below it."""
    if not _places:
        return None
    found: tuple[list[Place], bool] | None = None
    for trace in _traces(error.__traceback__):
        frame = trace.tb_frame
        if not _is_host_code(frame.f_globals):  # which a plugin may have put elsewhere
            kept = _places.get(id(frame.f_code))
            found = found if kept is None else (kept[1], False)
        elif found is not None:
            found = found[0], True
    return found


def _is_host_code(names: dict[str, Any]) -> bool:
    return str(names.get("__name__", "")).partition(".")[0] == "hookserve"


def _traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _functions_of(value: Any) -> Iterable[FunctionType]:
    from .first_call import function_of

    values = list(vars(value).values()) if isinstance(value, type) else [value]
    found = [function_of(each) for each in values if not isinstance(each, type)]
    return [function for function in found if function is not None]
