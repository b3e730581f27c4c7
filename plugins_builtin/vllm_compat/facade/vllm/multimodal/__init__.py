"""Images, audio and video: none are taken."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "MULTIMODAL_REGISTRY": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalRegistry": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
}
