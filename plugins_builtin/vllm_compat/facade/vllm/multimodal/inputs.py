"""Images, audio and video: none are taken."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "BatchedTensorInputs": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalDataDict": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalFieldConfig": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalKwargs": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalKwargsItem": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalKwargsItems": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalUUIDDict": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "PlaceholderRange": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
}
