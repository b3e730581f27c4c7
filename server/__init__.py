"""HTTP and the command line: wire types, streaming, engine client, supervision. Knows no tensors.

What is for programs and plugins is found here on first use, so that the command line does not
import what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "hookserve.server":
    raise ImportError(
        "import hookserve.server instead of server: the folder is installed under that name"
    )

if TYPE_CHECKING:
    from .app import build_app
    from .route_access import ScopedRoute

__all__ = ["ScopedRoute", "build_app"]

_MODULES = {"ScopedRoute": "route_access", "build_app": "app"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
