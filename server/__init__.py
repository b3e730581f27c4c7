"""HTTP and the command line: wire types, streaming, engine client, supervision. Knows no tensors.

``build_app`` is found here on first use, so that the command line does not import what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "hookserve.server":
    raise ImportError(
        "import hookserve.server instead of server: the folder is installed under that name"
    )

if TYPE_CHECKING:
    from .app import build_app

__all__ = ["build_app"]


def __getattr__(name: str) -> Any:
    if name == "build_app":
        from .app import build_app

        return build_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
