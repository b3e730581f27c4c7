"""The engine's arguments, and older names of the engines."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
