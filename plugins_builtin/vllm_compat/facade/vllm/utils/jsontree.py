"""Values nested in dicts, lists and tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

__all__ = ["json_count_leaves", "json_iter_leaves", "json_map_leaves", "json_reduce_leaves"]

__surface__ = dict.fromkeys(__all__, "live: plugins call it")


def json_iter_leaves(value: Any) -> Iterator[Any]:
    """What is no dict, list or tuple, in order."""
    if isinstance(value, dict):
        for each in value.values():
            yield from json_iter_leaves(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from json_iter_leaves(each)
    else:
        yield value


def json_map_leaves(func: Callable[[Any], Any], value: Any) -> Any:
    """The same form, with what the function makes of each leaf."""
    if isinstance(value, dict):
        return {key: json_map_leaves(func, each) for key, each in value.items()}
    if isinstance(value, list):
        return [json_map_leaves(func, each) for each in value]
    if isinstance(value, tuple):
        return tuple(json_map_leaves(func, each) for each in value)
    return func(value)


def json_reduce_leaves(func: Callable[[Any, Any], Any], value: Any, /, *initial: Any) -> Any:
    """As ``functools.reduce`` over the leaves."""
    return reduce(func, json_iter_leaves(value), *initial)


def json_count_leaves(value: Any) -> int:
    return sum(1 for _ in json_iter_leaves(value))
