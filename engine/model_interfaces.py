"""What a model says that it can do besides generating text: mix-ins that set a flag, and the
questions that are asked about a class or a model.

The names are the ecosystem's. An answer is the flag, not the base class: a model that sets the flag
itself answers alike. What keeps a class from being a model at all is ``model_registry``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch

from .model_facts import facts_of
from .model_registry import accepts, contract_fault
from .weights import IntermediateTensors, WeightsMapper

if TYPE_CHECKING:
    from collections.abc import Sequence

M = TypeVar("M", bound=type)

ScoreType = Literal["bi-encoder", "cross-encoder", "late-interaction"]
AttnType = Literal["decoder", "encoder", "encoder_only", "encoder_decoder"]


class SupportsLoRA:
    """Its weights can be adapted. What its fused layers are called in a checkpoint, which modules
    embed, and which prefixes of an adapter's names are left out."""

    supports_lora: ClassVar[bool] = True
    packed_modules_mapping: dict[str, list[str]] = {}  # noqa: RUF012 - read by name
    embedding_modules: dict[str, str] = {}  # noqa: RUF012
    lora_skip_prefixes: ClassVar[Sequence[str]] = ()


class SupportsPP:
    """Its layers can be split into stages. It has
    ``make_empty_intermediate_tensors(batch_size, dtype, device)``, and its ``forward`` takes
    ``intermediate_tensors``."""

    supports_pp: ClassVar[bool] = True

    def make_empty_intermediate_tensors(
        self, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> IntermediateTensors:
        """Zeros in the shapes that a stage hands to the next; models set a function of
        ``make_empty_intermediate_tensors_factory``."""
        raise TypeError(
            f"{type(self).__qualname__} must define or set make_empty_intermediate_tensors"
        )


class SupportsQuant:
    """It is built with a quantization, which is told of ``packed_modules_mapping`` and
    ``hf_to_vllm_mapper`` of its class before that."""

    hf_to_vllm_mapper: WeightsMapper | None = None
    packed_modules_mapping: Mapping[str, Sequence[str]] = {}
    quant_config: Any = None


class SupportsMultiModal:
    """It takes more than text."""

    supports_multimodal: ClassVar[bool] = True
    supports_multimodal_raw_input_only: ClassVar[bool] = False
    requires_raw_input_tokens: ClassVar[bool] = False


class SupportsMRoPE:
    """Its positions have several rows."""

    supports_mrope: ClassVar[bool] = True


class SupportsTranscription:
    """It writes down speech."""

    supports_transcription: ClassVar[bool] = True
    supports_transcription_only: ClassVar[bool] = False


class SupportsCrossEncoding:
    """It scores two texts that it reads together."""

    score_type: ClassVar[ScoreType] = "cross-encoder"


class SupportsLateInteraction:
    """It scores two texts by the embeddings of their tokens."""

    score_type: ClassVar[ScoreType] = "late-interaction"


class HasInnerState:
    """It keeps more of a sequence than keys and values."""

    has_inner_state: ClassVar[bool] = True


class IsAttentionFree:
    """It has no attention layers."""

    is_attention_free: ClassVar[bool] = True


class IsHybrid:
    """It has layers of attention and of another kind."""

    is_hybrid: ClassVar[bool] = True


class HasNoOps:
    """Some of its layers do nothing."""

    has_noops: ClassVar[bool] = True


class SupportsEagle:
    """Its hidden states serve a drafting model."""

    supports_eagle: ClassVar[bool] = True


class SupportsEagle3:
    """The same, with hidden states from between its layers."""

    supports_eagle3: ClassVar[bool] = True


class VllmModel:
    """What every model has; for annotations, as the next two."""

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` to ``[tokens, hidden]``."""
        raise TypeError(f"{type(self).__qualname__} must define embed_input_ids")


class VllmModelForTextGeneration(VllmModel):
    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """``[rows, hidden]`` to ``[rows, vocabulary]``."""
        raise TypeError(f"{type(self).__qualname__} must define compute_logits")


class VllmModelForPooling(VllmModel):
    """A model whose ``pooler`` makes embeddings or scores of hidden states."""

    is_pooling_model: ClassVar[bool] = True
    default_seq_pooling_type: ClassVar[str] = "LAST"
    default_tok_pooling_type: ClassVar[str] = "ALL"
    attn_type: ClassVar[AttnType] = "decoder"
    score_type: ClassVar[ScoreType] = "bi-encoder"
    pooler: Any


def default_pooling_type(
    *, seq_pooling_type: str = "LAST", tok_pooling_type: str = "ALL"
) -> Callable[[M], M]:
    """Class decorator: how the model's hidden states are pooled where nobody says."""

    def set_types(model_class: M) -> M:
        model_class.default_seq_pooling_type = seq_pooling_type  # type: ignore[attr-defined]
        model_class.default_tok_pooling_type = tok_pooling_type  # type: ignore[attr-defined]
        return model_class

    return set_types


def attn_type(attn_type: AttnType) -> Callable[[M], M]:
    """Class decorator: which tokens the model's attention sees."""

    def set_type(model_class: M) -> M:
        model_class.attn_type = attn_type  # type: ignore[attr-defined]
        return model_class

    return set_type


def get_default_seq_pooling_type(model: object) -> str:
    return str(getattr(model, "default_seq_pooling_type", "LAST"))


def get_default_tok_pooling_type(model: object) -> str:
    return str(getattr(model, "default_tok_pooling_type", "ALL"))


def get_attn_type(model: object) -> str:
    return str(getattr(model, "attn_type", "decoder"))


def get_score_type(model: object) -> str:
    return str(getattr(model, "score_type", "bi-encoder"))


def is_vllm_model(model: object) -> bool:
    """Whether a class, or a model of it, embeds ids, and runs over ids and positions."""
    model_class = _class_of(model)
    forward = getattr(model_class, "forward", None)
    return (
        callable(getattr(model_class, "embed_input_ids", None))
        and forward is not None
        and all(accepts(forward, name) for name in ("input_ids", "positions"))
    )


def is_text_generation_model(model: object) -> bool:
    """Whether it is one that is served here."""
    return contract_fault(_class_of(model)) is None


def is_pooling_model(model: object) -> bool:
    return _says(model, "is_pooling_model")


def supports_lora(model: object) -> bool:
    """Whether it says so, and names what an adapter needs to know."""
    return facts_of("", _class_of(model)).supports_lora


def supports_pp(model: object) -> bool:
    """Whether it says so, has ``make_empty_intermediate_tensors``, and its ``forward`` takes
    another stage's tensors."""
    return facts_of("", _class_of(model)).supports_pp


def supports_multimodal(model: object) -> bool:
    return _says(model, "supports_multimodal")


def supports_multimodal_raw_input_only(model: object) -> bool:
    return _says(model, "supports_multimodal_raw_input_only")


def requires_raw_input_tokens(model: object) -> bool:
    return _says(model, "requires_raw_input_tokens")


def supports_mrope(model: object) -> bool:
    return _says(model, "supports_mrope")


def supports_transcription(model: object) -> bool:
    return _says(model, "supports_transcription")


def supports_cross_encoding(model: object) -> bool:
    return get_score_type(model) == "cross-encoder"


def supports_late_interaction(model: object) -> bool:
    return get_score_type(model) == "late-interaction"


def has_inner_state(model: object) -> bool:
    return _says(model, "has_inner_state")


def is_attention_free(model: object) -> bool:
    return _says(model, "is_attention_free")


def is_hybrid(model: object) -> bool:
    return _says(model, "is_hybrid")


def has_noops(model: object) -> bool:
    return _says(model, "has_noops")


def supports_eagle(model: object) -> bool:
    return _says(model, "supports_eagle")


def supports_eagle3(model: object) -> bool:
    return _says(model, "supports_eagle3")


def _says(model: object, flag: str) -> bool:
    return bool(getattr(model, flag, False))


def _class_of(model: object) -> Any:
    return model if isinstance(model, type) else type(model)
