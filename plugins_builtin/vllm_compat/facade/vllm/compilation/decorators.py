"""Marks on models that may be compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

__all__ = ["support_torch_compile"]

__surface__ = {
    "support_torch_compile": "shape: leaves the class as it is; models run as they are written",
}


T = TypeVar("T", bound=type)


@overload
def support_torch_compile(cls: T) -> T: ...


@overload
def support_torch_compile(
    cls: None = None,
    *,
    dynamic_arg_dims: Mapping[str, Any] | None = None,
    mark_unbacked_dims: Mapping[str, Any] | None = None,
    enable_if: Callable[[Any], bool] | None = None,
    shape_invariants: Callable[..., None] | None = None,
) -> Callable[[T], T]: ...


def support_torch_compile(cls: Any = None, **how: Any) -> Any:
    """Class decorator, bare or with arguments.

    Args:
        how: how the class would be compiled; none is.
    """
    del how
    return (lambda decorated: decorated) if cls is None else cls
