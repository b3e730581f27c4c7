"""``AsWritten``: methods of the host's classes as they were first, and which are others by now.

Whoever has a faster way around a method asks here before it is taken. Whose the other method is,
``current_host`` knows.
"""

from __future__ import annotations

import inspect

from .snapshot import HOST_PACKAGE


class AsWritten:
    """Made right after its classes, before anybody can patch them."""

    def __init__(self, *classes: type) -> None:
        holders = dict.fromkeys(
            each
            for cls in classes
            for each in cls.__mro__
            if each.__module__.startswith(f"{HOST_PACKAGE}.")
        )
        self._methods = {each: _methods(each) for each in holders}
        self._names = frozenset(name for found in self._methods.values() for name in found)

    def replaced(self, *names: str) -> str | None:
        """The first method that is another one now, as ``module:Class.method``; also one that a
        class had of its base and has itself now.

        Args:
            names: of the methods to look at; all without any.
        """
        wanted = self._names.intersection(names) if names else self._names
        for holder, before in self._methods.items():
            for name, value in vars(holder).items():
                if name in wanted and value is not before.get(name):
                    return f"{holder.__module__}:{holder.__qualname__}.{name}"
        return None


def _methods(holder: type) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(holder).items()
        if inspect.isroutine(value) and not name.startswith("__")
    }
