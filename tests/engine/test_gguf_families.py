"""Every family's GGUF file: names, weights, configuration of the folder that it was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from gguf_converter import convert_to_gguf
from hookserve.engine.errors import EX_CONFIG, ModelFileError, UnknownArchitectureError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.gguf_names import generation_config_from_gguf
from hookserve.engine.model_files import read_model_files
from hookserve.engine.weight_iterators import iterate_gguf
from tiny_gguf import write_tiny_gguf
from tiny_models import write_tiny_model

TYPES = {
    **{"embed_tokens": "Q8_0", "q_proj": "Q5_0", "k_proj": "Q5_1", "v_proj": "F16"},
    **{"o_proj": "BF16", "up_proj": "Q4_0", "down_proj": "Q4_1"},
}
EIGHTS = {"query_pre_attn_scalar": 16}
"""The converter does not write this one: it is the size of a head."""
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {},
    "llama-biased": {},
    "llama-linear": {},
    "llama-yarn": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": EIGHTS,
}
SAME_KEYS = [
    *("architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "tie_word_embeddings", "bos_token_id", "eos_token_id"),
    *("pad_token_id", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    *("hidden_act", "hidden_activation"),
]


@pytest.fixture(scope="module", params=MODELS)
def converted(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``(the folder's configuration, GGUF file, weights as quantized)``."""
    at = tmp_path_factory.mktemp(request.param)
    folder = write_tiny_model(request.param, at / "folder", **MODELS[request.param])
    weights = convert_to_gguf(folder, at / "tiny.gguf", types=TYPES)
    return json.loads((folder / "config.json").read_text()), at / "tiny.gguf", weights


def test_weights_come_back_under_the_folders_names(converted: Any) -> None:
    _, path, weights = converted
    found = dict(iterate_gguf(str(path)))
    assert found.keys() == weights.keys()
    for name, tensor in found.items():
        assert numpy.array_equal(tensor.numpy(), weights[name]), name


def test_the_configuration_says_what_the_folders_says(converted: Any) -> None:
    expected, path, _ = converted
    config = read_model_files(str(path)).hf_config
    for key in SAME_KEYS:
        if key in expected and (key in config or expected[key] is not None):
            assert config[key] == expected[key], key
    if "sliding_attention" in expected.get("layer_types", ()):
        assert config["layer_types"] == expected["layer_types"]
    assert config["rms_norm_eps"] == pytest.approx(expected["rms_norm_eps"], rel=1e-6)
    assert config["rope_parameters"] == expected["rope_parameters"]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma2"])
def test_weights_equal_transformers_import(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    # transformers does not read the size of Qwen3's heads: it takes the default.
    changes = {"head_dim": 128} if name == "qwen3" else MODELS[name]
    folder = write_tiny_model(name, tmp_path / "folder", **changes)
    convert_to_gguf(folder, tmp_path / "tiny.gguf", types=TYPES)
    reference = AutoModelForCausalLM.from_pretrained(
        str(tmp_path), gguf_file="tiny.gguf", dtype=torch.float32
    )
    expected = reference.state_dict()
    found = dict(iterate_gguf(str(tmp_path / "tiny.gguf")))
    assert found.keys() == expected.keys() - ({"lm_head.weight"} if name != "qwen2" else set())
    for weight, tensor in found.items():
        assert torch.equal(tensor, expected[weight]), weight


def convert(tmp_path: Path, name: str, **metadata: Any) -> str:
    folder = write_tiny_model(name, tmp_path / "folder", **MODELS[name])
    keys = {key.replace("__", "."): value for key, value in metadata.items()}
    convert_to_gguf(folder, tmp_path / "tiny.gguf", metadata=keys)
    return str(tmp_path / "tiny.gguf")


def config_with(tmp_path: Path, name: str, **metadata: Any) -> dict[str, Any]:
    return read_model_files(convert(tmp_path, name, **metadata)).hf_config


def test_an_attention_scale_that_the_file_states_is_taken(tmp_path: Path) -> None:
    config = config_with(tmp_path, "gemma2", gemma2__attention__scale=0.125)
    assert config["query_pre_attn_scalar"] == 64


def test_gemma2s_largest_model_scales_by_its_width(tmp_path: Path) -> None:
    """27B: 4608 wide, 32 heads of 128, ``query_pre_attn_scalar`` 144; known by its 46 layers."""
    config = config_with(tmp_path, "gemma2", gemma2__block_count=46)
    assert config["query_pre_attn_scalar"] == 64 / 4
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 23


def test_gemma2_files_that_say_little_mean_the_published_models(tmp_path: Path) -> None:
    """From before the keys existed: caps of 50 and 30, a window of 4096."""
    keys = ("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    metadata = {f"gemma2.{key}": None for key in keys}
    config = config_with(tmp_path, "gemma2", **metadata)
    assert config["attn_logit_softcapping"] == 50
    assert config["final_logit_softcapping"] == 30
    assert config["sliding_window"] == 4096


def test_everything_that_yarn_may_state_is_carried_over(tmp_path: Path) -> None:
    config = config_with(
        tmp_path,
        "llama-yarn",
        llama__rope__scaling__yarn_attn_factor=1.25,
        llama__rope__scaling__yarn_beta_fast=16.0,
        llama__rope__scaling__yarn_beta_slow=2.0,
        llama__rope__scaling__yarn_ext_factor=1.0,
    )
    assert config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "attention_factor": 1.25,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    }


def test_the_key_of_the_oldest_files_scales_linearly(tmp_path: Path) -> None:
    config = config_with(tmp_path, "llama", llama__rope__scale_linear=4.0)
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("name", "metadata", "match"),
    [
        ("qwen2", {"qwen2.attention.sliding_window": 16}, "windows are not supported"),
        ("qwen3", {"qwen3.attention.value_length": 8}, "'qwen3.attention.value_length' is 8"),
        ("qwen3", {"qwen3.block_count": 1 << 30}, "'qwen3.block_count' is 1073741824"),
        ("gemma2", {"gemma2.attention.scale": -1.0}, "'gemma2.attention.scale' is -1.0"),
        ("llama-yarn", {"llama.rope.scaling.yarn_ext_factor": 0.5}, "only 1 is supported"),
        ("llama-yarn", {"llama.rope.scaling.yarn_log_multiplier": 0.1}, "is not supported"),
        ("llama", {"llama.rope.scaling.type": 3}, "'llama.rope.scaling.type' is no text"),
    ],
)
def test_what_a_family_cannot_be_is_refused_by_key(
    tmp_path: Path, name: str, metadata: dict[str, Any], match: str
) -> None:
    path = convert(tmp_path, name, **metadata)
    with pytest.raises(ModelFileError, match=match) as raised:
        read_model_files(path)
    assert path in str(raised.value)


def test_a_tensor_of_another_family_is_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q_norm.weight": numpy.ones(16, numpy.float32)}
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf", extra_tensors=extra).path)
    with pytest.raises(ModelFileError, match=r"'blk\.0\.attn_q_norm\.weight'.*family 'llama'"):
        read_model_files(path)


def test_an_unknown_family_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", family="mamba").path
    known = r"'mamba'.*llama, qwen2, qwen3, gemma2"
    with pytest.raises(UnknownArchitectureError, match=known) as e:
        read_model_files(str(path))
    assert e.value.exit_code == EX_CONFIG
    assert str(path) in str(e.value)


@pytest.mark.parametrize("token", ["<|eot_id|>", "<|im_end|>", "<end_of_turn>"])
def test_a_turn_ends_where_the_vocabulary_says_so(tmp_path: Path, token: str) -> None:
    path = tmp_path / "tiny.gguf"
    vocab = [*write_tiny_gguf(path).vocab]
    vocab[2] = token
    keys: dict[str, Any] = {"tokenizer.ggml.tokens": vocab}
    write_tiny_gguf(path, metadata=keys)
    assert generation_config_from_gguf(GGUFFile.open(str(path)))["eos_token_id"] == [0, 2]
    write_tiny_gguf(path, metadata={**keys, "tokenizer.ggml.eot_token_id": 0})
    assert generation_config_from_gguf(GGUFFile.open(str(path)))["eos_token_id"] == 0
