"""Sizes of memory in words."""

from __future__ import annotations

from .mem_constants import GiB_bytes, MiB_bytes

__all__ = ["format_gib", "format_mib"]

_MEASURED = "refused: the platform says what is free (Platform.available_memory)"
__surface__ = {
    "DeviceMemoryProfiler": _MEASURED,
    "MemorySnapshot": _MEASURED,
    "format_gib": "live: plugins call it",
    "format_mib": "live: plugins call it",
    "memory_profiling": _MEASURED,
}


def format_gib(b: int) -> str:
    return f"{b / GiB_bytes:.2f}"


def format_mib(b: int) -> str:
    return f"{b / MiB_bytes:.2f}"
