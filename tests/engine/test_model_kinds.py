"""Attention backends, quantizations and model configurations of plugins: chosen by name or class
path, the same in every process, and refused by name where they cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file

from hookserve.engine.errors import ConfigError, ModelFileError
from hookserve.engine.model_runner import ModelError
from hookserve.hookspecs import PluginError, PluginSettings
from hookserve.hookspecs.errors import UnknownNameError
from hookserve.plugins_builtin.cpu_platform import CpuPlatform
from model_kinds.classes import CountingImpl, FilledImpl, Int8RowsMethod, MyLlamaConfig
from model_variants import QUANTIZED, copy_model, edit_config, rename_fields, rounded
from offline_engine import OfflineEngine

PROMPTS = [[(7 * n + 11 * at + at * at) % 250 for at in range(3 + 19 * n)] for n in range(3)]


def with_kinds(folder: Path) -> PluginSettings:
    return PluginSettings(files=("model_kinds",), cache_dir=str(folder))


@pytest.fixture
def quantized(tiny_llama: Path, tmp_path: Path) -> Path:
    folder = copy_model(tiny_llama, tmp_path / "quantized", rounded(tiny_llama)[0])
    edit_config(folder, quantization_config=QUANTIZED)
    return folder


@pytest.fixture
def dequantized(tiny_llama: Path, tmp_path: Path) -> Path:
    return copy_model(tiny_llama, tmp_path / "dequantized", rounded(tiny_llama)[1])


def generate(model: Path, settings: PluginSettings | None = None, **options: Any) -> Any:
    """The tokens after each prompt, and what the first attention layer looks like."""
    with OfflineEngine(model, settings, **options) as engine:
        layer = engine.core.executor.worker.get_model().model.layers[0].self_attn
        return engine.generate(PROMPTS), layer


def test_a_quantized_checkpoint_is_read_by_the_plugin_of_its_method(
    quantized: Path, dequantized: Path, tmp_path: Path
) -> None:
    tokens, layer = generate(quantized, with_kinds(tmp_path))
    expected, _ = generate(dequantized)
    assert tokens == expected
    assert isinstance(layer.qkv_proj.quant_method, Int8RowsMethod)
    assert layer.qkv_proj.weight.dtype is torch.int8
    x = torch.randn(5, 64)
    weights = load_file(dequantized / "model.safetensors")
    by_hand = torch.cat(
        [x @ weights[f"model.layers.0.self_attn.{part}_proj.weight"].T for part in "qkv"], dim=1
    )
    torch.testing.assert_close(layer.qkv_proj(x)[0], by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["int8_rows", "model_kinds.classes:Int8Rows"])
def test_a_quantization_is_named_by_name_or_class_path(
    name: str, quantized: Path, dequantized: Path, tmp_path: Path
) -> None:
    """The checkpoint says nothing of it; its details stand in a file that the class names."""
    edit_config(quantized, quantization_config=None)
    (quantized / "int8_rows.json").write_text('{"bits": 8}')
    tokens, _ = generate(quantized, with_kinds(tmp_path), quantization=name)
    assert tokens == generate(dequantized)[0]


def test_what_stands_beside_the_configuration_is_read_too(quantized: Path, tmp_path: Path) -> None:
    edit_config(quantized, quantization_config=None)
    (quantized / "quantize_config.json").write_text(json.dumps(QUANTIZED))
    with pytest.raises(ModelFileError, match=r"quantize_config\.json: .*'int8_rows'"):
        generate(quantized)
    _, layer = generate(quantized, with_kinds(tmp_path))
    assert isinstance(layer.qkv_proj.quant_method, Int8RowsMethod)


def test_what_a_quantization_cannot_do_is_refused(
    quantized: Path, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = with_kinds(tmp_path)
    with pytest.raises(ModelFileError, match="quantized with 'int8_rows', which is not supported"):
        generate(quantized)
    with pytest.raises(ConfigError, match=r"--quantization 'int8_row': .*did you mean 'int8_rows'"):
        generate(quantized, settings, quantization="int8_row")
    with pytest.raises(ConfigError, match=r"'int8_row': expected a class path, as no plugin"):
        generate(tiny_llama, quantization="int8_row")
    with pytest.raises(ConfigError, match=r"'int8_rows' does not compute in bfloat16.*float32"):
        generate(quantized, settings, dtype="bfloat16")
    edit_config(quantized, quantization_config={**QUANTIZED, "bits": 4})
    with pytest.raises(PluginError, match=r"file:model_kinds .*int8_rows.*4 bits; expected 8"):
        generate(quantized, settings)
    edit_config(quantized, quantization_config={"quant_method": "gptq"})
    with pytest.raises(ConfigError, match=r"'int8_rows': expected 'gptq', as .*quantized says"):
        generate(quantized, settings, quantization="int8_rows")
    monkeypatch.setattr(CpuPlatform, "supported_quantization", ["awq"])
    with pytest.raises(ConfigError, match=r"'int8_rows': platform cpu takes awq alone"):
        generate(tiny_llama, settings, quantization="int8_rows")
    monkeypatch.undo()
    with pytest.raises(PluginError, match=r"MyLlamaConfig.*not a subclass of .*QuantizationConfig"):
        generate(tiny_llama, settings, quantization="model_kinds.classes:MyLlamaConfig")


@pytest.mark.parametrize("name", ["counting", "model_kinds.classes:NarrowBackend"])
def test_attention_is_computed_by_the_backend_that_is_named(
    name: str, tiny_llama: Path, tmp_path: Path
) -> None:
    tokens, layer = generate(tiny_llama, with_kinds(tmp_path), attention_backend=name)
    expected, plain = generate(tiny_llama)
    assert tokens == expected
    assert layer.attn.attn_backend.__name__.lower().startswith(name.split(":")[-1].lower()[:6])
    assert layer.attn.impl.num_calls == 16
    assert plain.attn.attn_backend.get_name() in ("paged", "compiled")


def test_two_plugins_have_a_backend_each(tiny_llama: Path, tmp_path: Path) -> None:
    """Side by side, and chosen by name; neither takes a place from the other or the built-in."""
    (tmp_path / "narrow_kind.py").write_text(
        "from hookserve.hookspecs import Named, hookimpl\n"
        "@hookimpl\n"
        "def attention_backend(): return Named('narrow', 'model_kinds.classes:NarrowBackend')\n"
    )
    files = ("model_kinds", str(tmp_path / "narrow_kind.py"))
    settings = PluginSettings(files=files, cache_dir=str(tmp_path))
    expected, plain = generate(tiny_llama, settings, attention_backend="paged")
    assert not isinstance(plain.attn.impl, CountingImpl)
    for name, kind in {"counting": CountingImpl, "narrow": FilledImpl}.items():
        tokens, layer = generate(tiny_llama, settings, attention_backend=name)
        assert tokens == expected
        assert type(layer.attn.impl) is kind and layer.attn.impl.num_calls == 16
    with pytest.raises(UnknownNameError) as caught:
        generate(tiny_llama, settings, attention_backend="a1")
    for known in ("counting of file:model_kinds", "narrow of file:narrow_kind", "paged of hookser"):
        assert known in str(caught.value)


def test_weights_are_read_by_the_loader_that_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    """In a format that only the plugin knows; what lies beside it is not read."""
    weights = load_file(tiny_llama / "model.safetensors")
    empty = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    folder = copy_model(tiny_llama, tmp_path / "numpy", empty)
    settings = with_kinds(tmp_path)
    with pytest.raises(ModelError, match=r"loader 'NumPy' of plugin file:model_kinds: FileNotFou"):
        generate(folder, settings, load_format="NumPy")
    numpy.savez(folder / "weights.npz", **{name: each.numpy() for name, each in weights.items()})
    expected, _ = generate(tiny_llama)
    for name in ("NumPy", "model_kinds.classes:NumPyLoader"):
        assert generate(folder, settings, load_format=name)[0] == expected
    assert len(set(expected[0])) > 3, "not what a model of zeros says"
    with pytest.raises(UnknownNameError, match=r"model_loader 'numpi' .*did you mean NumPy\?"):
        generate(folder, settings, load_format="numpi")


def test_a_backend_that_cannot_do_what_a_layer_asks_is_refused_by_name(
    tiny_llama: Path, tmp_path: Path
) -> None:
    settings = with_kinds(tmp_path)
    with pytest.raises(UnknownNameError, match=r"'countin' is not registered; did you mean count"):
        generate(tiny_llama, settings, attention_backend="countin")
    narrow = "model_kinds.classes:NarrowBackend"
    with pytest.raises(Exception, match=r"layers\.0\.self_attn\.attn.*'narrow'.*head size 8"):
        generate(tiny_llama, settings, attention_backend=narrow, hf_overrides={"head_dim": 8})


def test_a_model_type_is_read_by_the_plugin_that_knows_it(tiny_llama: Path, tmp_path: Path) -> None:
    own = copy_model(tiny_llama, tmp_path / "own", load_file(tiny_llama / "model.safetensors"))
    rename_fields(own)
    with pytest.raises(ModelFileError, match=r"has nothing under 'num_hidden_layers'"):
        generate(own)
    expected, _ = generate(tiny_llama)
    with OfflineEngine(own, with_kinds(tmp_path)) as engine:
        assert engine.generate(PROMPTS) == expected
        config = engine.core.vllm_config
        assert isinstance(config.model_config.hf_config, MyLlamaConfig)
        assert config.model_config.hf_text_config.width == 64
        plain = config.engine_config.model.hf_config
        assert (plain["num_hidden_layers"], plain["depth"], plain["mlp_bias"]) == (2, 2, False)
