"""Layers that models are built of."""

__surface__: dict[str, str] = {}
