"""Write a small random Llama checkpoint: two layers, a byte tokenizer, a chat template.

For tests that need a real checkpoint that loads in a moment and whose words do not matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 2, 4, 2, 16
SPECIALS = ("<|bos|>", "<|end|>", "<|start|>", "<|pad|>")
VOCAB = 256 + len(SPECIALS)
MAX_POSITIONS = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def weights(seed: int = 0) -> dict[str, numpy.ndarray[Any, Any]]:
    random = numpy.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> numpy.ndarray[Any, Any]:
        return (random.standard_normal((rows, columns)) * 0.08).astype(numpy.float32)

    ones = numpy.ones(HIDDEN, numpy.float32)
    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": ones,
            at + "post_attention_layernorm.weight": ones,
            at + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            at + "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            at + "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            at + "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return tensors


def config(architecture: str = "LlamaForCausalLM") -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 256,
        "eos_token_id": 257,
    }


def write_tokenizer(folder: Path) -> None:
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={symbol: at for at, symbol in enumerate(symbols)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": MAX_POSITIONS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_tiny_llama(folder: Path, architecture: str = "LlamaForCausalLM", seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(architecture)))
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 256, "eos_token_id": 257})
    )
    save_file(weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder
