"""The version that whoever asks is shown; never kept, as each plugin may be shown another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookserve.plugins_builtin.vllm_compat.presented_version import presented_version

if TYPE_CHECKING:
    __version__: str
    __version_tuple__: tuple[int | str, ...]

__all__ = ["__version__", "__version_tuple__"]

__surface__ = {
    "__version__": "live: the version that this plugin is shown",
    "__version_tuple__": "live: the same as numbers",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return presented_version()
    if name == "__version_tuple__":
        parts = presented_version().split(".")
        return tuple(int(part) if part.isdigit() else part for part in parts)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
