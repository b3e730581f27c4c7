"""Llava: none of it is served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "LlavaForConditionalGeneration": "refused: no images are taken",
    "LlavaProcessingInfo": "refused: no images are taken",
    "LlavaDummyInputsBuilder": "refused: no images are taken",
    "LlavaMultiModalProcessor": "refused: no images are taken",
}
