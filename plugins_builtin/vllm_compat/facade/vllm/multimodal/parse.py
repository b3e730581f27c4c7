"""Images, audio and video: none are taken."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "ModalityDataItems": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "ModalityDataParser": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalDataItems": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "MultiModalDataParser": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "ProcessorBatchItems": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
}
