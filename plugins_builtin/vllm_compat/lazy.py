"""``names_from``: a module of the facade whose names are imported when they are first asked for.

For modules that a process without torch, or one that has just started, may import for one name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names_from(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``module``: each name of the table, and no other.

    Args:
        homes: the module that each name is found in; one that begins with a dot is of the facade,
            seen from ``module``'s own package.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        spec = sys.modules[module].__spec__
        found = getattr(importlib.import_module(home, spec.parent if spec else module), name)
        setattr(sys.modules[module], name, found)
        return found

    return find
