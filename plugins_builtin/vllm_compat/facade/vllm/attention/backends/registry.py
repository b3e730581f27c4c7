"""Attention backends by name, by an older path of ``vllm.v1.attention.backends.registry``."""

from __future__ import annotations

from ...v1.attention.backends.registry import AttentionBackendEnum, register_backend

__older_path_of__ = "vllm.v1.attention.backends.registry"

__all__ = ["AttentionBackendEnum", "register_backend"]

__surface__ = {
    "AttentionBackendEnum": "live: names of backends",
    "register_backend": "live: registers a class for --attention-backend",
}
