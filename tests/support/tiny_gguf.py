"""Write a small GGUF file of the llama family with the ``gguf`` package, from known weights.

The writer, the quantization and the byte-level vocabulary are other people's code, so a test that
reads the file back compares with something that is not ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy
from gguf.constants import GGMLQuantizationType as QuantType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gguf_converter import add_value, interleave

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
CONTEXT = 128
SPECIALS = ("<|end|>", "<|start|>", "<|fim|>")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
CORPUS = [
    "def main(argv):\n    return 0  # the quick brown fox\n" * 3,
    "The quick brown fox jumps over the lazy dog; it's 1234 o'clock, don't you think?",
    "naïve café résumé über straße 日本語 日本 Ελληνικά русский язык 🙂🙂 👩‍👩‍👧",
    "        indented    text \t with\n\n\n runs   of  spaces",
]


@dataclass
class TinyGGUF:
    path: Path
    weights: dict[str, numpy.ndarray[Any, Any]]
    """As they were before quantization, under the ecosystem's names."""
    types: dict[str, str]
    """Quantization by GGUF name."""
    vocab: list[str] = field(default_factory=list)


def train_vocab(size: int = 420) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level vocabulary; the special tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.model.__getstate__())
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    return tokens, merges


def _weights(vocab_size: int, tied: bool) -> dict[str, numpy.ndarray[Any, Any]]:
    random = numpy.random.default_rng(7)

    def matrix(*shape: int) -> numpy.ndarray[Any, Any]:
        return random.standard_normal(shape).astype(numpy.float32)

    weights = {
        "model.embed_tokens.weight": matrix(vocab_size, HIDDEN),
        "model.norm.weight": matrix(HIDDEN),
    }
    if not tied:
        weights["lm_head.weight"] = matrix(vocab_size, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {
            at + "input_layernorm.weight": matrix(HIDDEN),
            at + "post_attention_layernorm.weight": matrix(HIDDEN),
            at + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            at + "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            at + "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            at + "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return weights


def _gguf_name(name: str) -> str:
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in names:
        return names[name]
    _, _, layer, rest = name.split(".", 3)
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    return f"blk.{layer}.{parts[rest.removesuffix('.weight')]}.weight"


def write_tiny_gguf(
    path: Path,
    *,
    types: Mapping[str, str] | None = None,
    tied: bool = True,
    pre: str = "gpt-2",
    family: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, numpy.ndarray[Any, Any]] | None = None,
) -> TinyGGUF:
    """Write the file.

    Args:
        types: quantization by the weight's name within its layer (``"attn_q.weight"``) or whole;
            the other matrices are Q8_0, vectors F32.
        family: what ``general.architecture`` says; keys and weights stay llama's.
        metadata: keys to set or, with ``None``, to leave out.
    """
    tokens, merges = train_vocab()
    weights = _weights(len(tokens), tied)
    wanted = dict(types or {})
    used: dict[str, str] = {}
    writer = gguf.GGUFWriter(str(path), family)
    _write_metadata(writer, tokens, merges, pre, dict(metadata or {}))
    for name, weight in weights.items():
        target = _gguf_name(name)
        if "q_proj" in name or "k_proj" in name:
            weight = interleave(weight, HEADS if "q_proj" in name else KV_HEADS)
        short = target.split(".", 2)[-1] if target.startswith("blk.") else target
        kind = "F32" if weight.ndim == 1 else wanted.get(target, wanted.get(short, "Q8_0"))
        used[target] = kind
        quant = QuantType[kind]
        writer.add_tensor(target, gguf.quants.quantize(weight, quant), raw_dtype=quant)
    for target, weight in (extra_tensors or {}).items():
        writer.add_tensor(target, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyGGUF(path, weights, used, tokens)


def _write_metadata(
    writer: gguf.GGUFWriter,
    tokens: list[str],
    merges: list[str],
    pre: str,
    overrides: dict[str, Any],
) -> None:
    values: dict[str, Any] = {
        "general.name": "tiny",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 12345.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }
    values.update(overrides)
    for key, value in values.items():
        if key == "general.architecture" or value is None:
            continue
        add_value(writer, key, value)
