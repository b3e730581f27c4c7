"""What every model is."""

from __future__ import annotations

from hookserve.engine.model_interfaces import (
    VllmModel,
    VllmModelForPooling,
    VllmModelForTextGeneration,
    attn_type,
    default_pooling_type,
    get_attn_type,
    get_default_seq_pooling_type,
    get_default_tok_pooling_type,
    get_score_type,
    is_pooling_model,
    is_text_generation_model,
    is_vllm_model,
)

__all__ = [
    "VllmModel",
    "VllmModelForPooling",
    "VllmModelForTextGeneration",
    "attn_type",
    "default_pooling_type",
    "get_attn_type",
    "get_default_seq_pooling_type",
    "get_default_tok_pooling_type",
    "get_score_type",
    "is_pooling_model",
    "is_text_generation_model",
    "is_vllm_model",
]

__surface__ = {
    "VllmModel": "shape: for annotations; a model is told by its methods",
    "VllmModelForTextGeneration": "shape: for annotations; a model is told by its methods",
    "VllmModelForPooling": "shape: sets is_pooling_model; no route pools yet",
    "attn_type": "live: inspection reads what it sets, and refuses what is not causal",
    "default_pooling_type": "shape: sets what inspection reads; no route pools yet",
    "get_attn_type": "live: answers by what a class or a model says",
    "get_default_seq_pooling_type": "live: answers by what a class or a model says",
    "get_default_tok_pooling_type": "live: answers by what a class or a model says",
    "get_score_type": "live: answers by what a class or a model says",
    "is_pooling_model": "live: answers by what a class or a model says",
    "is_text_generation_model": "live: answers by what a class or a model says",
    "is_vllm_model": "live: answers by what a class or a model says",
}
