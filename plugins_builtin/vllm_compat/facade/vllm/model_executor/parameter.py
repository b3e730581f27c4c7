"""Parameters that say how they are split over ranks."""

from __future__ import annotations

from hookserve.ops.typed_parameter import (
    BasevLLMParameter,
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    ModelWeightParameter,
    PackedColumnParameter,
    PackedvLLMParameter,
    PerTensorScaleParameter,
    RowvLLMParameter,
)

__all__ = [
    "BasevLLMParameter",
    "ChannelQuantScaleParameter",
    "GroupQuantScaleParameter",
    "ModelWeightParameter",
    "PackedColumnParameter",
    "PackedvLLMParameter",
    "PerTensorScaleParameter",
    "RowvLLMParameter",
]

__surface__ = {
    "BasevLLMParameter": "live: linear layers and embeddings load it by its own methods",
    "ChannelQuantScaleParameter": "live: linear layers and embeddings load it by its own methods",
    "GroupQuantScaleParameter": "live: linear layers and embeddings load it by its own methods",
    "ModelWeightParameter": "live: linear layers and embeddings load it by its own methods",
    "PackedColumnParameter": "live: linear layers and embeddings load it by its own methods",
    "PackedvLLMParameter": "live: linear layers and embeddings load it by its own methods",
    "PerTensorScaleParameter": "live: linear layers and embeddings load it by its own methods",
    "RowvLLMParameter": "live: linear layers and embeddings load it by its own methods",
    "BlockQuantScaleParameter": (
        "refused: weights in blocks of FP8 are not computed here; use a scale of each group "
        "or output"
    ),
}
