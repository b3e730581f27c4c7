"""Images, audio and video: none are taken."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "BaseMultiModalProcessor": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "BaseProcessingInfo": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "EncDecMultiModalProcessor": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "PromptReplacement": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "PromptUpdate": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
    "PromptUpdateDetails": (
        "refused: no images, audio or video are taken; a model of a plugin is given text alone"
    ),
}
