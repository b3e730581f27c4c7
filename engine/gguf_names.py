"""From GGUF's names to the ecosystem's: metadata to ``config.json``'s keys, tensors to parameters.

What differs between families is ``gguf_families``' table. Torch-free: the front reads the
configuration too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .errors import ModelFileError, UnknownArchitectureError
from .gguf import GGUFFile
from .gguf_families import FAMILIES, Family
from .gguf_metadata import Metadata
from .gguf_rope import ROPE_FREQS, rope_scaling_from_gguf
from .model_shape import NEEDED_SIZES

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>")
"""Tokens that end a turn wherever a vocabulary has them: older files have no key that says so."""
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class HfTensor:
    """What one GGUF tensor is in the ecosystem, and what has to be undone to make it that."""

    name: str
    heads: int = 0
    """Above 0: rows interleaved in so many heads."""
    offset: float = 0.0
    """What was added to each element."""


def hf_tensors(file: GGUFFile, hf_config: dict[str, Any]) -> dict[str, HfTensor]:
    """The ecosystem's name for each tensor of the file that is a parameter.

    Raises:
        ModelFileError: a tensor that the family does not have.
    """
    family_name, family = _family(file)
    heads = {
        "attn_q": int(hf_config["num_attention_heads"]),
        "attn_k": int(hf_config["num_key_value_heads"]),
    }
    named: dict[str, HfTensor] = {}
    for name in file.tensors:
        if name == ROPE_FREQS:
            continue
        offset = family.norm_offset if name.endswith("norm.weight") else 0.0
        if name in _GLOBAL_NAMES:
            named[name] = HfTensor(_GLOBAL_NAMES[name], 0, offset)
            continue
        match = _BLOCK.fullmatch(name)
        if match is None or match[2] not in family.block_names:
            raise ModelFileError(
                f"{file.path}: tensor {name!r} does not belong to a model of the family "
                f"{family_name!r}; the file is of a kind that is not supported"
            )
        layer, part, kind = match.groups()
        hf_name = f"model.layers.{layer}.{family.block_names[part]}.{kind}"
        interleaved = heads.get(part, 0) if family.interleaves_heads else 0
        named[name] = HfTensor(hf_name, interleaved, offset)
    return named


def _family(file: GGUFFile) -> tuple[str, Family]:
    name = Metadata(file).text("general.architecture")
    if name not in FAMILIES:
        raise UnknownArchitectureError(
            f"{file.path}: GGUF files of the family {name!r} are not supported; supported: "
            f"{', '.join(FAMILIES)}. A folder with config.json and safetensors files may work "
            "instead"
        )
    return name, FAMILIES[name]


def hf_config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """A complete configuration of the file's family with ``config.json``'s keys.

    Raises:
        UnknownArchitectureError: a family that is not supported.
        ModelFileError: a key that is missing or of the wrong kind, or a shape that contradicts the
            metadata.
    """
    name, family = _family(file)
    metadata = Metadata(file, f"{name}.")
    if metadata.count("expert_count", 0):
        raise ModelFileError(f"{file.path}: mixture-of-experts GGUF files are not supported")
    hidden_size = metadata.count("embedding_length")
    num_heads = metadata.count("attention.head_count")
    num_kv_heads = metadata.count("attention.head_count_kv", num_heads)
    vocab_size = _vocab_size(file, hidden_size)
    head_dim = _head_dim(file, metadata, hidden_size, num_heads, num_kv_heads)
    rope_theta = metadata.number("rope.freq_base", 10000.0)
    rope_scaling = rope_scaling_from_gguf(file, metadata, head_dim, rope_theta)
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_act": family.activation,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": metadata.count("feed_forward_length"),
        "num_hidden_layers": _num_layers(metadata),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "rope_parameters": {
            "rope_theta": rope_theta,
            **(rope_scaling or {"rope_type": "default"}),
        },
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    config.update(family.own_keys(file, metadata, config))
    config.update(_special_ids(Metadata(file), vocab_size))
    return config


def _num_layers(metadata: Metadata) -> int:
    num_layers = metadata.count("block_count")
    most = NEEDED_SIZES["num_hidden_layers"]
    if num_layers > most:
        raise metadata.fail("block_count", f"is {num_layers}; at most {most} are believed")
    return num_layers


def generation_config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """``generation_config.json``'s keys: every id that ends a turn, the model's own end first."""
    metadata = Metadata(file)
    config: dict[str, Any] = {}
    ends: list[int] = []
    for key in ("eos", "eot", "eom"):
        value = metadata.optional_count(f"tokenizer.ggml.{key}_token_id")
        if value is not None and value not in ends:
            ends.append(value)
    if not metadata.has("tokenizer.ggml.eot_token_id"):
        ends += [found for found in _turn_ends(file) if found not in ends]
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    bos = metadata.optional_count("tokenizer.ggml.bos_token_id")
    if bos is not None:
        config["bos_token_id"] = bos
    return config


def _turn_ends(file: GGUFFile) -> list[int]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return []
    return [tokens.index(token) for token in _TURN_ENDS if token in tokens]


def _shape(file: GGUFFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ModelFileError(f"{file.path}: tensor {name!r} is missing")
    return file.tensors[name].shape


def _vocab_size(file: GGUFFile, hidden_size: int) -> int:
    """The embedding's rows: the vocabulary's list may be shorter, never longer."""
    shape = _shape(file, "token_embd.weight")
    if len(shape) != 2 or shape[1] != hidden_size:
        raise ModelFileError(
            f"{file.path}: tensor 'token_embd.weight' has shape {list(shape)}, but the metadata's "
            f"embedding_length says {hidden_size} columns"
        )
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if isinstance(tokens, list) and len(tokens) > shape[0]:
        raise ModelFileError(
            f"{file.path}: the vocabulary lists {len(tokens)} tokens, but tensor "
            f"'token_embd.weight' has {shape[0]} rows"
        )
    return shape[0]


def _head_dim(
    file: GGUFFile, metadata: Metadata, hidden_size: int, num_heads: int, num_kv_heads: int
) -> int:
    if num_heads < 1 or num_kv_heads < 1:
        raise ModelFileError(f"{file.path}: {num_heads} heads, {num_kv_heads} key-value heads")
    head_dim = metadata.count("attention.key_length", hidden_size // num_heads)
    value_dim = metadata.count("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise metadata.fail(
            "attention.value_length", f"is {value_dim}; only the keys' {head_dim} is supported"
        )
    rotated = metadata.count("rope.dimension_count", head_dim)
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


def _special_ids(metadata: Metadata, vocab_size: int) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "padding": "pad"}
    ids: dict[str, Any] = {}
    for key, hf_key in names.items():
        value = metadata.optional_count(f"tokenizer.ggml.{key}_token_id")
        # Files without such a token often carry a number beyond the vocabulary.
        ids[f"{hf_key}_token_id"] = value if value is not None and value < vocab_size else None
    return ids
