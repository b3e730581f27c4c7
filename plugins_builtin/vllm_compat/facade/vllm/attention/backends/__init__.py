"""Attention backends, by an older path of ``vllm.v1.attention``."""

from __future__ import annotations

__older_path_of__ = "vllm.v1.attention"

__all__: list[str] = []

__surface__: dict[str, str] = {}
