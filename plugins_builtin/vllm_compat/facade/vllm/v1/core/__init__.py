"""What the engine keeps of requests and blocks."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
