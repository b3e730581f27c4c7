"""Write small random checkpoints of every architecture and kind of rotation, by transformers.

For comparisons with transformers: heads that divide by two, weights large enough that each layer
counts and that the likeliest token stands clear of the next (the median gap of their logits is
above 0.05), and a tokenizer that knows every token id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tiny_llama import VOCAB, write_tokenizer

SHAPE: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 259,
}
GATED: Mapping[str, Any] = {
    "intermediate_size": 96,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
OPT: Mapping[str, Any] = {"ffn_dim": 96, "tie_word_embeddings": True}


SCALES: Mapping[str, Mapping[str, float]] = {
    "gemma2": {"embed_tokens": 0.5},
    "opt": {"q_proj": 3.0, "fc": 0.5, "bias": 0.2},
}
"""By which weights are larger than elsewhere, by a part of their name: without it these models
would answer with one token over and over, whatever they are asked."""


def _rotated(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}}


TINY_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": (
        "llama",
        {"max_position_embeddings": 1024, **_rotated("linear", factor=2.0)},
    ),
    "llama-dynamic": (
        "llama",
        {"max_position_embeddings": 512, **_rotated("dynamic", factor=4.0)},
    ),
    "llama-llama3": (
        "llama",
        _rotated(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=256,
        ),
    ),
    "llama-yarn": (
        "llama",
        _rotated("yarn", factor=8.0, original_max_position_embeddings=256),
    ),
    "mistral": ("mistral", {"sliding_window": 16}),
    "mistral-full": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "gemma2": (
        "gemma2",
        {
            "tie_word_embeddings": True,
            "sliding_window": 16,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "opt": ("opt", {}),
    "opt-projected": ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
}
"""Name to transformers' model type and what its configuration adds to the shape above."""


def write_tiny_model(name: str, folder: Path, **changes: Any) -> Path:
    """A folder with the checkpoint ``name`` of ``TINY_MODELS``, the same one each time.

    Args:
        changes: of the configuration.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, own = TINY_MODELS[name]
    family = OPT if model_type == "opt" else GATED
    config = AutoConfig.for_model(model_type, **{**SHAPE, **family, **own, **changes})
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    _fill(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def _fill(model: Any) -> None:
    """Random weights, biases and norms: none has a value that a model could leave out."""
    generator = torch.Generator().manual_seed(7)
    scales = SCALES.get(model.config.model_type, {})
    with torch.no_grad():
        for name, param in model.named_parameters():
            is_factor = "norm" in name and name.endswith("weight")
            scale = math.prod(factor for part, factor in scales.items() if part in name)
            param.normal_(1.0 if is_factor else 0.0, 0.15 * scale, generator=generator)


def load_reference(
    folder: Path, max_model_len: int | None = None, dtype: torch.dtype = torch.float32
) -> Any:
    """transformers' own model of the folder.

    transformers lets a dynamic rotation follow the longest sequence that a model has seen, so that
    its answers depend on what came before. With ``max_model_len`` the frequencies are transformers'
    own for a sequence of that length, and stay so.
    """
    from transformers import AutoModelForCausalLM
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    ).eval()
    rope = getattr(model.model, "rotary_emb", None)
    if rope is not None and rope.rope_type == "dynamic" and max_model_len is not None:
        inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, seq_len=max_model_len)
        rope.inv_freq.copy_(inv_freq)
        rope.rope_type = "default"
    return model
