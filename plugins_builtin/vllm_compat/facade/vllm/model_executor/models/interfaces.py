"""What a model says that it can do."""

from __future__ import annotations

from typing import TypeAlias

import torch

from hookserve.engine.model_interfaces import (
    HasInnerState,
    HasNoOps,
    IsAttentionFree,
    IsHybrid,
    SupportsCrossEncoding,
    SupportsEagle,
    SupportsEagle3,
    SupportsLateInteraction,
    SupportsLoRA,
    SupportsMRoPE,
    SupportsMultiModal,
    SupportsPP,
    SupportsQuant,
    SupportsTranscription,
    has_inner_state,
    has_noops,
    is_attention_free,
    is_hybrid,
    requires_raw_input_tokens,
    supports_cross_encoding,
    supports_eagle,
    supports_eagle3,
    supports_late_interaction,
    supports_lora,
    supports_mrope,
    supports_multimodal,
    supports_multimodal_raw_input_only,
    supports_pp,
    supports_transcription,
)

__all__ = [
    "HasInnerState",
    "HasNoOps",
    "IsAttentionFree",
    "IsHybrid",
    "MultiModalEmbeddings",
    "SupportsCrossEncoding",
    "SupportsEagle",
    "SupportsEagle3",
    "SupportsLateInteraction",
    "SupportsLoRA",
    "SupportsMRoPE",
    "SupportsMultiModal",
    "SupportsPP",
    "SupportsQuant",
    "SupportsTranscription",
    "has_inner_state",
    "has_noops",
    "is_attention_free",
    "is_hybrid",
    "requires_raw_input_tokens",
    "supports_cross_encoding",
    "supports_eagle",
    "supports_eagle3",
    "supports_late_interaction",
    "supports_lora",
    "supports_mrope",
    "supports_multimodal",
    "supports_multimodal_raw_input_only",
    "supports_pp",
    "supports_transcription",
]

__surface__ = {
    "SupportsLoRA": "live: inspection reads its flag; no adapter is loaded yet",
    "SupportsPP": "live: inspection reads its flag; there is one stage",
    "SupportsQuant": (
        "live: the quantization is told of the class's mappings before the model is built"
    ),
    "HasInnerState": (
        "live: inspection reads its flag and refuses the model, as only keys and values are kept"
    ),
    "IsHybrid": (
        "live: inspection reads its flag and refuses the model, as only keys and values are kept"
    ),
    "IsAttentionFree": "shape: sets a flag",
    "HasNoOps": "shape: sets a flag",
    "SupportsMultiModal": "shape: sets a flag; the model is given text alone",
    "SupportsMRoPE": "shape: sets a flag; positions have one row",
    "SupportsTranscription": "shape: sets a flag; no route takes speech",
    "SupportsCrossEncoding": "shape: sets score_type; no route scores",
    "SupportsLateInteraction": "shape: sets score_type; no route scores",
    "SupportsEagle": "shape: sets a flag; nothing is drafted",
    "SupportsEagle3": "shape: sets a flag; nothing is drafted",
    "MultiModalEmbeddings": "shape: the type of what an encoder gives",
    "has_inner_state": "live: answers by the flag of a class or a model",
    "has_noops": "live: answers by the flag of a class or a model",
    "is_attention_free": "live: answers by the flag of a class or a model",
    "is_hybrid": "live: answers by the flag of a class or a model",
    "supports_cross_encoding": "live: answers by the flag of a class or a model",
    "supports_eagle": "live: answers by the flag of a class or a model",
    "supports_eagle3": "live: answers by the flag of a class or a model",
    "supports_late_interaction": "live: answers by the flag of a class or a model",
    "supports_lora": "live: answers by the flag of a class or a model",
    "supports_mrope": "live: answers by the flag of a class or a model",
    "requires_raw_input_tokens": "live: answers by the flag of a class or a model",
    "supports_multimodal_raw_input_only": "live: answers by the flag of a class or a model",
    "supports_multimodal": "live: answers by the flag of a class or a model",
    "supports_pp": "live: answers by the flag of a class or a model",
    "supports_transcription": "live: answers by the flag of a class or a model",
    "MixtureOfExperts": "refused: no architecture with such layers is served",
    "SupportsMambaPrefixCaching": "refused: no architecture with such layers is served",
    "SupportsReplaySSM": "refused: no architecture with such layers is served",
    "SupportsMultiModalPruning": "refused: no images, audio or video are taken",
    "SupportsEncoderCudaGraph": "refused: no images, audio or video are taken",
    "SupportsRealtime": "refused: no images, audio or video are taken",
    "SupportsHCSP": "refused: a sequence is computed by one group of ranks",
    "SupportsScoreTemplate": "refused: no route scores",
    "LocalArgmaxMixin": "refused: tokens are drawn from the logits of all ranks",
    "EagleModelMixin": "refused: nothing is drafted",
    "SupportsV0Only": "refused: there is one engine; leave it out",
}


MultiModalEmbeddings: TypeAlias = list[torch.Tensor] | tuple[torch.Tensor, ...] | torch.Tensor
