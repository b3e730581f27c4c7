"""``/pooling``, which is not served so far."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
