"""The registry of models, and what models say that they can do."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

__all__ = [
    "HasInnerState",
    "ModelRegistry",
    "SupportsLoRA",
    "SupportsMRoPE",
    "SupportsMultiModal",
    "SupportsPP",
    "SupportsTranscription",
    "VllmModelForPooling",
    "VllmModelForTextGeneration",
    "has_inner_state",
    "is_pooling_model",
    "is_text_generation_model",
    "supports_lora",
    "supports_mrope",
    "supports_multimodal",
    "supports_pp",
    "supports_transcription",
]

__surface__ = {
    "ModelRegistry": "live: fills the registry of models",
    "HasInnerState": (
        "live: inspection reads its flag and refuses the model, as only keys and values are kept"
    ),
    "SupportsLoRA": "live: inspection reads its flag; no adapter is loaded yet",
    "SupportsMRoPE": "shape: sets a flag; positions have one row",
    "SupportsMultiModal": "shape: sets a flag; the model is given text alone",
    "SupportsPP": "live: inspection reads its flag; there is one stage",
    "SupportsTranscription": "shape: sets a flag; no route takes speech",
    "has_inner_state": "live: answers by the flag of a class or a model",
    "supports_lora": "live: answers by the flag of a class or a model",
    "supports_mrope": "live: answers by the flag of a class or a model",
    "supports_multimodal": "live: answers by the flag of a class or a model",
    "supports_pp": "live: answers by the flag of a class or a model",
    "supports_transcription": "live: answers by the flag of a class or a model",
    "VllmModelForTextGeneration": "shape: for annotations; a model is told by its methods",
    "VllmModelForPooling": "shape: sets is_pooling_model; no route pools yet",
    "is_pooling_model": "live: answers by what a class or a model says",
    "is_text_generation_model": "live: answers by what a class or a model says",
}

__getattr__ = names_from(
    __name__,
    {
        "ModelRegistry": ".registry",
        "HasInnerState": ".interfaces",
        "SupportsLoRA": ".interfaces",
        "SupportsMRoPE": ".interfaces",
        "SupportsMultiModal": ".interfaces",
        "SupportsPP": ".interfaces",
        "SupportsTranscription": ".interfaces",
        "has_inner_state": ".interfaces",
        "supports_lora": ".interfaces",
        "supports_mrope": ".interfaces",
        "supports_multimodal": ".interfaces",
        "supports_pp": ".interfaces",
        "supports_transcription": ".interfaces",
        "VllmModelForPooling": ".interfaces_base",
        "VllmModelForTextGeneration": ".interfaces_base",
        "is_pooling_model": ".interfaces_base",
        "is_text_generation_model": ".interfaces_base",
    },
)
