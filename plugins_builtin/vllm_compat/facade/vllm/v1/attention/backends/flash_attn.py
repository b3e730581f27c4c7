"""A backend that is not served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "FlashAttentionBackend": (
        "refused: attention on a GPU is Triton's here; a backend of your own derives from "
        "AttentionBackend"
    ),
    "FlashAttentionImpl": (
        "refused: attention on a GPU is Triton's here; a backend of your own derives from "
        "AttentionBackend"
    ),
    "FlashAttentionMetadata": (
        "refused: attention on a GPU is Triton's here; a backend of your own derives from "
        "AttentionBackend"
    ),
    "FlashAttentionMetadataBuilder": (
        "refused: attention on a GPU is Triton's here; a backend of your own derives from "
        "AttentionBackend"
    ),
}
