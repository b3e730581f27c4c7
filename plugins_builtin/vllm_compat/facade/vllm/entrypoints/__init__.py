"""What a program or a server is started from."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
