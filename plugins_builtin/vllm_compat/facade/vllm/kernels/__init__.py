"""Kernels that provide ops: those here are built in."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
