"""Sizes in bytes."""

from __future__ import annotations

KB_bytes = 1000
MB_bytes = 1000**2
GB_bytes = 1000**3
KiB_bytes = 1024
MiB_bytes = 1024**2
GiB_bytes = 1024**3

__all__ = ["GB_bytes", "GiB_bytes", "KB_bytes", "KiB_bytes", "MB_bytes", "MiB_bytes"]

__surface__ = dict.fromkeys(__all__, "live: plugins read it")
