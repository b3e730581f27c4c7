"""What is read from a checkpoint's own files."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
