"""Classes of configuration, and copies of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

__all__ = ["config", "getattr_iter", "replace"]

__surface__ = {
    "config": "live: makes a class a dataclass, where it is none yet",
    "getattr_iter": "live: the first of several attributes that is there",
    "replace": "live: a copy with some fields changed",
}

C = TypeVar("C", bound=type[Any])
D = TypeVar("D")


@overload
def config(cls: C) -> C: ...


@overload
def config(cls: None = None, **options: Any) -> Callable[[C], C]: ...


def config(cls: Any = None, **options: Any) -> Any:
    """Class decorator, with or without options of ``dataclasses.dataclass``."""
    if cls is None:
        return lambda given: config(given, **options)
    if "__dataclass_fields__" in vars(cls):
        return cls
    return dataclasses.dataclass(**options)(cls)


def getattr_iter(
    object: object,
    names: Iterable[str],
    default: Any = None,
    default_factory: Callable[[], Any] | None = None,
) -> Any:
    """
    Args:
        default_factory: makes the default where none of them is there.
    """
    for name in names:
        if hasattr(object, name):
            return getattr(object, name)
    return default if default_factory is None else default_factory()


def replace(dataclass_instance: D, /, **changes: Any) -> D:
    """
    Raises:
        TypeError: a field that it has not.
    """
    return dataclasses.replace(dataclass_instance, **changes)  # type: ignore[type-var]
