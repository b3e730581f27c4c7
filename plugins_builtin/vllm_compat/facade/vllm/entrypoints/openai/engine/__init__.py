"""The older home of the types of requests and replies."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
