"""``ModelFacts``: what is known of a model's class without building it.

Read from the class in a process that has imported it (``facts_of``), or stated by a plugin in
``ModelEntry.info``; names are the ecosystem's. What keeps a class from being served is
``model_registry``'s to say, which process looks at it ``model_inspection``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hookserve.hookspecs.errors import did_you_mean

from .model_registry import accepts, is_old_style


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model's class says that it is and can do; what it does not say is the default."""

    architecture: str
    """The name under which it is registered."""
    is_text_generation_model: bool = False
    is_pooling_model: bool = False
    attn_type: str = "decoder"
    default_seq_pooling_type: str = "LAST"
    default_tok_pooling_type: str = "ALL"
    score_type: str = "bi-encoder"
    supports_multimodal: bool = False
    supports_multimodal_raw_input_only: bool = False
    requires_raw_input_tokens: bool = False
    supports_multimodal_encoder_tp_data: bool = False
    supports_pp: bool = False
    supports_lora: bool = False
    supports_hc_sp: bool = False
    has_inner_state: bool = False
    is_attention_free: bool = False
    is_hybrid: bool = False
    has_noops: bool = False
    supports_mamba_prefix_caching: bool = False
    supports_replayssm: bool = False
    supports_transcription: bool = False
    supports_transcription_only: bool = False
    supported_video_pruning_methods: tuple[str, ...] = ()
    supports_mm_device_do_normalize: bool = False
    is_old_style: bool = False
    """Whether the constructor asks for parts of the configuration (``model_registry``)."""


_TEXTS = ("attn_type", "default_seq_pooling_type", "default_tok_pooling_type", "score_type")
_FLAGS = (
    "is_pooling_model",
    "supports_multimodal",
    "supports_multimodal_raw_input_only",
    "requires_raw_input_tokens",
    "supports_hc_sp",
    "has_inner_state",
    "is_attention_free",
    "is_hybrid",
    "has_noops",
    "supports_mamba_prefix_caching",
    "supports_replayssm",
    "supports_transcription",
    "supports_transcription_only",
    "supports_mm_device_do_normalize",
)


def facts_of(architecture: str, model_class: type[Any]) -> ModelFacts:
    """What the class says of itself. One that keeps the contract is expected
    (``model_registry.contract_fault``)."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(ModelFacts)}
    texts = {name: _text(getattr(model_class, name, defaults[name])) for name in _TEXTS}
    flags = {name: bool(getattr(model_class, name, False)) for name in _FLAGS}
    methods = getattr(model_class, "supported_video_pruning_methods", ())
    return ModelFacts(
        architecture=architecture,
        is_text_generation_model=callable(getattr(model_class, "compute_logits", None)),
        supports_multimodal_encoder_tp_data=bool(
            getattr(model_class, "supports_encoder_tp_data", False)
        ),
        supports_pp=_supports_pp(model_class),
        supports_lora=_supports_lora(model_class),
        supported_video_pruning_methods=tuple(map(str, methods)),
        is_old_style=is_old_style(model_class),
        **texts,  # type: ignore[arg-type]
        **flags,  # type: ignore[arg-type]
    )


def _text(value: Any) -> str:
    """Of a member of an enumeration, what it stands for."""
    return str(getattr(value, "value", value))


def _supports_pp(model_class: type[Any]) -> bool:
    """A flag alone does not make layers of a pipeline."""
    return (
        bool(getattr(model_class, "supports_pp", False))
        and hasattr(model_class, "make_empty_intermediate_tensors")
        and accepts(model_class.forward, "intermediate_tensors")
    )


def _supports_lora(model_class: type[Any]) -> bool:
    stated = ("packed_modules_mapping", "embedding_modules")
    return bool(getattr(model_class, "supports_lora", False)) and all(
        hasattr(model_class, name) for name in stated
    )


def stated_facts(architecture: str, info: Mapping[str, Any]) -> ModelFacts:
    """The facts that a plugin states in ``ModelEntry.info``; it is a model that generates text,
    unless it says otherwise.

    Raises:
        ValueError: what was stated that is no fact, or is of another type.
    """
    known = [field.name for field in msgspec.structs.fields(ModelFacts)]
    for name in info:
        if name not in known:
            raise ValueError(f"info states {name!r}, which is no fact{did_you_mean(name, known)}")
    stated = {"is_text_generation_model": True, **info, "architecture": architecture}
    try:
        return msgspec.convert(stated, ModelFacts)
    except msgspec.ValidationError as error:
        raise ValueError(f"info: {error}") from error
