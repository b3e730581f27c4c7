"""Attention backends, by an older path of ``vllm.v1.attention``."""

from __future__ import annotations

__all__: list[str] = []

__surface__: dict[str, str] = {}
