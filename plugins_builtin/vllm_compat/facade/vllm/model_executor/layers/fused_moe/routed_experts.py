"""A layer of experts: none is served."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

__all__ = ["RoutedExperts"]

__surface__ = {
    "RoutedExperts": "shape: for isinstance; no model has one, and building one is an error",
}


class RoutedExperts(nn.Module):
    """What layers of experts are; none can be built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """
        Raises:
            TypeError: always.
        """
        del args, kwargs
        _refuse(type(self))


def _refuse(asked: type[Any]) -> NoReturn:
    raise TypeError(
        f"{asked.__module__}.{asked.__qualname__} cannot be used: no architecture with experts is "
        "served; choose a model without them"
    )
