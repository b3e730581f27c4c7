"""Lists and mappings taken apart."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import chain
from typing import Any, Literal, TypeVar

__all__ = [
    "as_iter",
    "as_list",
    "chunk_list",
    "flatten_2d_lists",
    "full_groupby",
    "is_list_of",
    "swap_dict_values",
]

__surface__ = dict.fromkeys(__all__, "live: plugins call it")

T = TypeVar("T")
K = TypeVar("K")


def is_list_of(
    value: object, typ: type[T] | tuple[type[T], ...], *, check: Literal["first", "all"] = "first"
) -> bool:
    """Whether it is a list, and its first item, or each, is of the type."""
    if not isinstance(value, list):
        return False
    looked_at = value[:1] if check == "first" else value
    return all(isinstance(item, typ) for item in looked_at)


def as_list(maybe_list: Iterable[T]) -> list[T]:
    return maybe_list if isinstance(maybe_list, list) else list(maybe_list)


def as_iter(obj: T | Iterable[T]) -> Iterable[T]:
    """Itself, where it can be iterated and is no text; else it alone."""
    if isinstance(obj, str) or not isinstance(obj, Iterable):
        return [obj]
    return obj


def chunk_list(lst: list[T], chunk_size: int) -> Generator[list[T], None, None]:
    for start in range(0, len(lst), chunk_size):
        yield lst[start : start + chunk_size]


def flatten_2d_lists(lists: Iterable[Iterable[T]]) -> list[T]:
    return list(chain.from_iterable(lists))


def full_groupby(values: Iterable[T], *, key: Callable[[T], K]) -> Iterable[tuple[K, list[T]]]:
    """Groups in the order of their first value; values of a group need not be neighbours."""
    groups: dict[K, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups.items()


def swap_dict_values(obj: dict[K, T], key1: K, key2: K) -> None:
    """Exchange two values; a key that has none has none afterwards at the other."""
    found: Mapping[K, Any] = {key: obj.pop(key) for key in (key1, key2) if key in obj}
    if key1 in found:
        obj[key2] = found[key1]
    if key2 in found:
        obj[key1] = found[key2]
