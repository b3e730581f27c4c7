"""From GGUF's names to the ecosystem's: metadata to ``config.json``'s keys, tensors to parameters.

One family so far, ``llama`` (Llama, SmolLM2, Mistral's shape). The format stores the query and key
projections with each head's rows interleaved; ``HfTensor.heads`` says where that has to be undone.
Torch-free: the front reads the configuration too.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ModelFileError
from .gguf import GGUFFile

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
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
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")

ROPE_FREQS = "rope_freqs.weight"
"""Llama 3.1's frequency divisors: a parameter of the format, a configuration of the ecosystem."""

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192
_LLAMA3_FACTORS = (8.0, 32.0)
_SCALING_TYPES = ("linear", "yarn")


@dataclass(frozen=True, slots=True)
class HfTensor:
    """The ecosystem's name of one GGUF tensor; ``heads`` > 0: rows interleaved in so many heads."""

    name: str
    heads: int = 0


def hf_tensors(file: GGUFFile, hf_config: dict[str, Any]) -> dict[str, HfTensor]:
    """The ecosystem's name for each tensor of the file that is a parameter.

    Raises:
        ModelFileError: a tensor that the family does not have.
    """
    heads = {
        "attn_q": int(hf_config["num_attention_heads"]),
        "attn_k": int(hf_config["num_key_value_heads"]),
    }
    named: dict[str, HfTensor] = {}
    for name in file.tensors:
        if name == ROPE_FREQS:
            continue
        if name in _GLOBAL_NAMES:
            named[name] = HfTensor(_GLOBAL_NAMES[name])
            continue
        match = _BLOCK.fullmatch(name)
        if match is None or match[2] not in _BLOCK_NAMES:
            raise ModelFileError(
                f"{file.path}: tensor {name!r} does not belong to a Llama model; "
                "the file is of a kind that is not supported"
            )
        layer, part, kind = match.groups()
        hf_name = f"model.layers.{layer}.{_BLOCK_NAMES[part]}.{kind}"
        named[name] = HfTensor(hf_name, heads.get(part, 0))
    return named


def hf_config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """A complete ``LlamaForCausalLM`` configuration with ``config.json``'s keys.

    Raises:
        ModelFileError: another family, a key that is missing or of the wrong kind, or a shape that
            contradicts the metadata.
    """
    metadata = _Metadata(file)
    family = metadata.text("general.architecture")
    if family != "llama":
        raise ModelFileError(
            f"{file.path}: GGUF files of the family {family!r} are not supported; supported: "
            "'llama'. A folder with config.json and safetensors files may work instead"
        )
    if metadata.count("llama.expert_count", 0):
        raise ModelFileError(f"{file.path}: mixture-of-experts GGUF files are not supported")
    hidden_size = metadata.count("llama.embedding_length")
    num_heads = metadata.count("llama.attention.head_count")
    num_kv_heads = metadata.count("llama.attention.head_count_kv", num_heads)
    vocab_size = _vocab_size(file, hidden_size)
    head_dim = _head_dim(file, metadata, hidden_size, num_heads, num_kv_heads)
    rope_theta = metadata.number("llama.rope.freq_base", 10000.0)
    rope_scaling = _rope_scaling(file, metadata, head_dim, rope_theta)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": metadata.count("llama.feed_forward_length"),
        "num_hidden_layers": metadata.count("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": metadata.count("llama.context_length"),
        "rms_norm_eps": metadata.number("llama.attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "rope_parameters": {
            "rope_theta": rope_theta,
            **(rope_scaling or {"rope_type": "default"}),
        },
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    config.update(_special_ids(metadata, vocab_size))
    return config


def generation_config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """``generation_config.json``'s keys: every id that ends a turn, the model's own end first."""
    metadata = _Metadata(file)
    config: dict[str, Any] = {}
    ends: list[int] = []
    for key in ("eos", "eot", "eom"):
        value = metadata.optional_count(f"tokenizer.ggml.{key}_token_id")
        if value is not None and value not in ends:
            ends.append(value)
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    bos = metadata.optional_count("tokenizer.ggml.bos_token_id")
    if bos is not None:
        config["bos_token_id"] = bos
    return config


class _Metadata:
    """Typed access to the metadata; a wrong kind names the key."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    def _get(self, key: str, default: Any, what: str) -> Any:
        value = self._file.metadata.get(key, default)
        if value is None:
            raise ModelFileError(f"{self._file.path}: metadata key {key!r} ({what}) is missing")
        return value

    def text(self, key: str) -> str:
        value = self._get(key, None, "text")
        if not isinstance(value, str):
            raise ModelFileError(f"{self._file.path}: metadata key {key!r} is no text")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default, "a whole number")
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not 0 <= value < 1 << 31:
            shown = "a list" if isinstance(value, list) else repr(value)
            raise ModelFileError(
                f"{self._file.path}: metadata key {key!r} is {shown}; expected one whole number"
            )
        return int(value)

    def optional_count(self, key: str) -> int | None:
        return self.count(key) if key in self._file.metadata else None

    def number(self, key: str, default: float) -> float:
        value = self._get(key, default, "a number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0:
            raise ModelFileError(
                f"{self._file.path}: metadata key {key!r} is {value!r}; expected a positive number"
            )
        return float(value)


def _shape(file: GGUFFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ModelFileError(f"{file.path}: tensor {name!r} is missing")
    return file.tensors[name].shape


def _vocab_size(file: GGUFFile, hidden_size: int) -> int:
    """The embedding's rows: the vocabulary's list may be shorter, never longer."""
    shape = _shape(file, "token_embd.weight")
    if len(shape) != 2 or shape[1] != hidden_size:
        raise ModelFileError(
            f"{file.path}: tensor 'token_embd.weight' has shape {list(shape)}, but "
            f"llama.embedding_length says {hidden_size} columns"
        )
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if isinstance(tokens, list) and len(tokens) > shape[0]:
        raise ModelFileError(
            f"{file.path}: the vocabulary lists {len(tokens)} tokens, but tensor "
            f"'token_embd.weight' has {shape[0]} rows"
        )
    return shape[0]


def _head_dim(
    file: GGUFFile, metadata: _Metadata, hidden_size: int, num_heads: int, num_kv_heads: int
) -> int:
    if num_heads < 1 or num_kv_heads < 1:
        raise ModelFileError(f"{file.path}: {num_heads} heads, {num_kv_heads} key-value heads")
    head_dim = metadata.count("llama.attention.key_length", hidden_size // num_heads)
    rotated = metadata.count("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelFileError(
            f"{file.path}: rotates {rotated} of {head_dim} dimensions a head; only rotation of "
            "the whole head is supported"
        )
    for name, heads in (("blk.0.attn_q.weight", num_heads), ("blk.0.attn_k.weight", num_kv_heads)):
        expected = (heads * head_dim, hidden_size)
        if _shape(file, name) != expected:
            raise ModelFileError(
                f"{file.path}: tensor {name!r} has shape {list(_shape(file, name))}, but {heads} "
                f"heads of {head_dim} make it {list(expected)}"
            )
    return head_dim


def _rope_scaling(
    file: GGUFFile, metadata: _Metadata, head_dim: int, theta: float
) -> dict[str, Any] | None:
    if ROPE_FREQS in file.tensors:
        return _llama3_scaling(file, head_dim, theta)
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in _SCALING_TYPES:
        raise ModelFileError(
            f"{file.path}: rope scaling {kind!r} is not supported; supported: "
            f"{', '.join(_SCALING_TYPES)}"
        )
    scaling: dict[str, Any] = {
        "rope_type": kind,
        "factor": metadata.number("llama.rope.scaling.factor", 1.0),
    }
    original = metadata.optional_count("llama.rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3_scaling(file: GGUFFile, head_dim: int, theta: float) -> dict[str, Any]:
    """Which of Llama 3's published scalings the stored divisors are; others are refused."""
    info = file.tensors[ROPE_FREQS]
    if info.ggml_type != "F32" or info.shape != (head_dim // 2,):
        raise ModelFileError(
            f"{file.path}: tensor {ROPE_FREQS!r} is {info.ggml_type} {list(info.shape)}; "
            f"expected F32 [{head_dim // 2}]"
        )
    stored = file.raw(ROPE_FREQS).view(np.float32)
    for factor in _LLAMA3_FACTORS:
        if np.allclose(stored, _llama3_divisors(head_dim, theta, factor), rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                **_LLAMA3_ROPE,
                "original_max_position_embeddings": _LLAMA3_CONTEXT,
            }
    raise ModelFileError(
        f"{file.path}: tensor {ROPE_FREQS!r} holds a rope scaling that is none of Llama 3's "
        f"(factors {_LLAMA3_FACTORS}); it is not supported"
    )


def _llama3_divisors(head_dim: int, theta: float, factor: float) -> list[float]:
    low, high = _LLAMA3_ROPE["low_freq_factor"], _LLAMA3_ROPE["high_freq_factor"]
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        smooth = (_LLAMA3_CONTEXT / wavelength - low) / (high - low)
        smooth = min(1.0, max(0.0, smooth))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _special_ids(metadata: _Metadata, vocab_size: int) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "padding": "pad"}
    ids: dict[str, Any] = {}
    for key, hf_key in names.items():
        value = metadata.optional_count(f"tokenizer.ggml.{key}_token_id")
        # Files without such a token often carry a number beyond the vocabulary.
        ids[f"{hf_key}_token_id"] = value if value is not None and value < vocab_size else None
    return ids
