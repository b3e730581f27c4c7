"""Convert a small transformers folder to a GGUF file, by the rules of the format's converter.

The rules (``convert_hf_to_gguf.py`` of llama.cpp) are written out once more, forwards, so that what
reads the file backwards is compared with something else. Writing and quantizing is the ``gguf``
package's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType as QuantType
from safetensors.numpy import load_file

Floats = npt.NDArray[numpy.float32]

FAMILY = {"mistral": "llama"}
"""The format's name of a model type, where it is another one."""

GLOBAL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_LAYER = {
    **LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, model_type: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in GLOBAL:
        return f"{GLOBAL[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{(GEMMA_LAYER if model_type == 'gemma2' else LAYER)[part]}.{kind}"


def interleave(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of a head's two halves alternate: first of the first, first of the second, ..."""
    half = len(weight) // heads // 2
    order = [
        head * 2 * half + side * half + at
        for head in range(heads)
        for at in range(half)
        for side in range(2)
    ]
    return weight[order]


def convert_to_gguf(
    folder: Path,
    path: Path,
    *,
    types: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Floats]:
    """Write the file; returns what is to be read back from it, under the folder's names.

    Args:
        types: quantization by a part of the folder's name, for matrices; the others are F32.
        metadata: keys to set or, with ``None``, to leave out.
    """
    config = json.loads((folder / "config.json").read_text())
    family = FAMILY.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(str(path), family)
    _write_metadata(writer, family, config, folder, dict(metadata or {}))
    back: dict[str, Floats] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        kinds = [kind for part, kind in (types or {}).items() if part in name]
        quant = QuantType[kinds[0] if kinds and weight.ndim > 1 else "F32"]
        offset = numpy.float32(family == "gemma2" and name.endswith("norm.weight"))
        stored = gguf.quants.quantize(weight + offset, quant)
        back[name] = gguf.quants.dequantize(stored, quant).reshape(weight.shape) - offset
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            stored = interleave(stored, config[heads])
        writer.add_tensor(gguf_name(name, config["model_type"]), stored, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return back


def _write_metadata(
    writer: gguf.GGUFWriter,
    family: str,
    config: dict[str, Any],
    folder: Path,
    more: dict[str, Any],
) -> None:
    own: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    if family != "gemma2":
        own["rope.freq_base"] = config["rope_parameters"]["rope_theta"]
    if config["model_type"] in ("mistral", "gemma2") and config.get("sliding_window"):
        own["attention.sliding_window"] = config["sliding_window"]
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if key in config:
            own[key] = config[key]
    own |= _rope(config["rope_parameters"])
    values = {f"{family}.{key}": value for key, value in own.items()}
    for key, value in {**values, **_vocabulary(folder, config), **more}.items():
        if value is not None:
            add_value(writer, key, value)


def _rope(rope: dict[str, Any]) -> dict[str, Any]:
    if rope["rope_type"] not in ("linear", "yarn"):
        return {}
    keys = {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        for name in ("beta_fast", "beta_slow"):
            if name in rope:
                keys[f"rope.scaling.yarn_{name}"] = float(rope[name])
        if "attention_factor" in rope:
            keys["rope.scaling.yarn_attn_factor"] = rope["attention_factor"]
    return keys


def _vocabulary(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    described = json.loads((folder / "tokenizer.json").read_text())
    ids = dict(described["model"]["vocab"])
    special = {token["content"]: token["id"] for token in described["added_tokens"]}
    ids |= special
    tokens = sorted(ids, key=ids.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
    }


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Write one key with the type that the converter would choose."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
