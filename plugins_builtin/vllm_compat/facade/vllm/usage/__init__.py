"""Who uses an engine; nothing is told to anybody."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
