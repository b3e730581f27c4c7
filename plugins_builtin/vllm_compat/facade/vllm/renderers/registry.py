"""Renderers by name; there are none."""

from __future__ import annotations

from . import __surface__ as _PACKAGE

__all__: list[str] = []

__surface__ = {"RENDERER_REGISTRY": _PACKAGE["RENDERER_REGISTRY"]}
