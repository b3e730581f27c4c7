"""The families of models that GGUF files may hold: what each calls its tensors and keys.

One table, by the value of ``general.architecture``. The rules are those by which the format's
converter (``convert_hf_to_gguf.py`` of https://github.com/ggml-org/llama.cpp) writes a checkpoint,
read backwards. The keys and tensors that all families have are ``gguf_names``'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .gguf import GGUFFile
from .gguf_metadata import Metadata

OwnKeys = Callable[[GGUFFile, Metadata, Mapping[str, Any]], dict[str, Any]]
"""``(file, the family's metadata, keys that all families have)`` to the family's own keys."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one family's files become the ecosystem's checkpoints."""

    architecture: str
    """As in ``config.json``'s ``architectures``."""
    model_type: str
    activation: str
    block_names: Mapping[str, str]
    """A tensor's name within its block to that within its layer."""
    own_keys: OwnKeys
    interleaves_heads: bool = False
    """The rows of query and key alternate between a head's two halves."""
    norm_offset: float = 0.0
    """What the converter added to each norm's weight."""


_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QWEN3_NAMES = {
    **_BLOCK_NAMES,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_GEMMA2_NAMES = {
    **_BLOCK_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_WINDOW = "attention.sliding_window"

_GEMMA2_WINDOW = 4096
_GEMMA2_ATTENTION_CAP, _GEMMA2_FINAL_CAP = 50.0, 30.0
"""What files hold that do not say, as in llama.cpp's ``llama-model.cpp``."""
_GEMMA2_27B_LAYERS = 46


def _llama_keys(file: GGUFFile, metadata: Metadata, common: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }
    window = metadata.optional_count(_WINDOW)
    if window:  # Mistral is Llama with a window; the format has no name of its own for it
        keys |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window,
        }
    return keys


def _qwen2_keys(file: GGUFFile, metadata: Metadata, common: Mapping[str, Any]) -> dict[str, Any]:
    """The converter has no place for the layer from which Qwen's window holds."""
    window = metadata.optional_count(_WINDOW)
    if window and window < common["max_position_embeddings"]:
        raise metadata.fail(_WINDOW, f"is {window}; windows are not supported in this family")
    return {"use_sliding_window": False, "sliding_window": None}


def _qwen3_keys(file: GGUFFile, metadata: Metadata, common: Mapping[str, Any]) -> dict[str, Any]:
    biased = "blk.0.attn_q.bias" in file.tensors
    return {**_qwen2_keys(file, metadata, common), "attention_bias": biased}


def _gemma2_keys(file: GGUFFile, metadata: Metadata, common: Mapping[str, Any]) -> dict[str, Any]:
    num_layers = common["num_hidden_layers"]
    kinds = ("sliding_attention", "full_attention")
    return {
        "attention_bias": False,
        "hidden_activation": common["hidden_act"],
        "query_pre_attn_scalar": _query_scalar(metadata, common),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", _GEMMA2_ATTENTION_CAP),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", _GEMMA2_FINAL_CAP),
        "sliding_window": metadata.count(_WINDOW, _GEMMA2_WINDOW),
        "layer_types": [kinds[layer % 2] for layer in range(num_layers)],
    }


def _query_scalar(metadata: Metadata, common: Mapping[str, Any]) -> float:
    """Queries are scaled by its root's inverse. Files seldom say it: it is the size of a head,
    except in the 27B model, which is known by its layers (llama.cpp, ``src/models/gemma2.cpp``)."""
    scale = metadata.optional_number("attention.scale")
    if scale is not None:
        return scale**-2
    if common["num_hidden_layers"] == _GEMMA2_27B_LAYERS:
        return float(common["hidden_size"] / common["num_attention_heads"])
    return float(common["head_dim"])


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(
            "LlamaForCausalLM", "llama", "silu", _BLOCK_NAMES, _llama_keys, interleaves_heads=True
        ),
        "qwen2": Family("Qwen2ForCausalLM", "qwen2", "silu", _BLOCK_NAMES, _qwen2_keys),
        "qwen3": Family("Qwen3ForCausalLM", "qwen3", "silu", _QWEN3_NAMES, _qwen3_keys),
        "gemma2": Family(
            "Gemma2ForCausalLM",
            "gemma2",
            "gelu_pytorch_tanh",
            _GEMMA2_NAMES,
            _gemma2_keys,
            norm_offset=1.0,
        ),
    }
)
