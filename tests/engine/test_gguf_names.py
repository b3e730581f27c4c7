"""Names, shapes and configuration of a GGUF file against transformers' own import of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.gguf_names import generation_config_from_gguf, hf_config_from_gguf
from hookserve.engine.model_files import read_model_files
from hookserve.engine.weight_iterators import iterate_gguf
from tiny_gguf import HEAD_DIM, TinyGGUF, write_tiny_gguf

COMPARED_KEYS = [
    "architectures",
    "model_type",
    "hidden_act",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "rope_parameters",
]


def transformers_import(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.filterwarnings("default")
def test_weights_and_configuration_equal_transformers_import(tmp_path: Path, tied: bool) -> None:
    types = {"attn_q.weight": "Q4_1", "attn_k.weight": "Q4_0", "ffn_up.weight": "F16"}
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", types=types, tied=tied)
    reference = transformers_import(tiny.path)
    expected = dict(reference.state_dict())
    if tied:
        del expected["lm_head.weight"]
    found = dict(iterate_gguf(str(tiny.path)))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name
    config = hf_config_from_gguf(GGUFFile.open(str(tiny.path)))
    wanted = {**reference.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    assert {k: config[k] for k in COMPARED_KEYS} == {k: wanted[k] for k in COMPARED_KEYS}


def test_each_head_gets_its_rows_back(tmp_path: Path) -> None:
    """Unquantized, the original weights come back exactly, whatever reads them."""
    types = dict.fromkeys(("attn_q.weight", "attn_k.weight", "token_embd.weight"), "F32")
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", types=types)
    found = dict(iterate_gguf(str(tiny.path)))
    for part in ("self_attn.q_proj", "self_attn.k_proj"):
        name = f"model.layers.1.{part}.weight"
        assert numpy.array_equal(found[name].numpy(), tiny.weights[name])


def test_every_end_of_turn_token_is_an_end(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 0}
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", metadata=metadata)
    config = generation_config_from_gguf(GGUFFile.open(str(tiny.path)))
    assert config == {"bos_token_id": 1, "eos_token_id": [0, 2]}


def config_with(tmp_path: Path, **kwargs: Any) -> dict[str, Any]:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", **kwargs)
    return hf_config_from_gguf(GGUFFile.open(str(tiny.path)))


def test_linear_rope_scaling_is_carried_over(tmp_path: Path) -> None:
    metadata = {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    config = config_with(tmp_path, metadata=metadata)
    scaling = {"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 32}
    assert config["rope_scaling"] == scaling
    assert config["rope_parameters"] == {"rope_theta": 12345.0, **scaling}


def llama3_divisors(factor: float) -> numpy.ndarray[Any, Any]:
    """From transformers' own computation of the scaled frequencies."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=HEAD_DIM, rope_parameters=parameters
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(numpy.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    return (plain / scaled.numpy()).astype(numpy.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_frequency_divisors_become_its_rope_scaling(tmp_path: Path, factor: float) -> None:
    config = config_with(
        tmp_path,
        metadata={"llama.rope.freq_base": 500000.0},
        extra_tensors={"rope_freqs.weight": llama3_divisors(factor)},
    )
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def refused(tmp_path: Path, match: str, **kwargs: Any) -> None:
    tiny: TinyGGUF = write_tiny_gguf(tmp_path / "tiny.gguf", **kwargs)
    with pytest.raises(ModelFileError, match=match) as raised:
        read_model_files(str(tiny.path))
    assert str(tiny.path) in str(raised.value)


def test_unknown_frequency_divisors_are_refused(tmp_path: Path) -> None:
    ones = numpy.ones(HEAD_DIM // 2, numpy.float32)
    refused(tmp_path, "rope_freqs.weight", extra_tensors={"rope_freqs.weight": ones})


def test_a_tensor_that_no_llama_has_is_refused(tmp_path: Path) -> None:
    extra = {"blk.0.ssm_conv1d.weight": numpy.ones((2, 32), numpy.float32)}
    refused(tmp_path, "ssm_conv1d", extra_tensors=extra)


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"llama.context_length": None}, "'llama.context_length'.*missing"),
        ({"llama.block_count": "two"}, "'llama.block_count' is 'two'"),
        ({"llama.embedding_length": 128}, "'token_embd.weight' has shape"),
        ({"llama.attention.head_count_kv": 4}, "'blk.0.attn_k.weight' has shape"),
        ({"llama.attention.head_count": 0}, "0 heads"),
        ({"llama.rope.dimension_count": 8}, "rotates 8 of 16"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope'"),
        ({"llama.rope.freq_base": -1.0}, "'llama.rope.freq_base' is -1.0"),
    ],
)
def test_metadata_that_does_not_fit_is_refused_by_key(
    tmp_path: Path, metadata: dict[str, Any], match: str
) -> None:
    refused(tmp_path, match, metadata=metadata)
