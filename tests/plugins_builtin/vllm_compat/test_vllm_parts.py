"""Quantizations, loaders and attention backends that packages for vLLM register, in the models that
they are asked for in."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from safetensors.numpy import load_file, save_file

from hookserve.engine.llm import LLM
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import Host, PluginSettings
from hookserve.ops.context import TensorParallelGroup
from plugin_folder import write_metadata
from step_runner import StepRunner, load_model, make_vllm_config
from thread_ranks import run_ranks
from tiny_llama import write_tiny_llama

PROMPTS = [[5, 77, 130, 201, 9, 41, 250, 3], [3, 88], list(range(40))]
SCALES = {"q": 0.5, "k": 2.0, "v": 1.25, "gate": 0.75, "up": 3.0}
pytestmark = pytest.mark.usefixtures("vllm_facade")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    entries = {"vllm.general_plugins": {"toy_parts": "vllm_style_parts:register"}}
    write_metadata(site, "toy-parts", entries, [])
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("vllm_style_parts", None)


def parts() -> ModuleType:
    return sys.modules["vllm_style_parts"]


def texts(folder: Path, **options: Any) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(folder), kv_cache_memory_bytes=1 << 20, **options) as llm:
        return [list(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, params)]


def quantize(plain: Path, folder: Path) -> Path:
    """A copy whose linear layers are in int8; ``plain`` becomes what that stands for."""
    write_tiny_llama(folder)
    tensors, rounded = load_file(plain / "model.safetensors"), {}
    quantized = {}
    for name, tensor in tensors.items():
        if "_proj" not in name:
            quantized[name] = rounded[name] = tensor
            continue
        base = name.removesuffix(".weight")
        part = numpy.array(
            SCALES.get(base.rpartition(".")[2].removesuffix("_proj"), 1.0), numpy.float32
        )
        scale = (numpy.abs(tensor).max(1) / 127).astype(numpy.float32)
        quantized[name] = numpy.round(tensor / scale[:, None]).astype(numpy.int8)
        quantized[base + ".weight_scale"] = scale / part
        quantized[base + ".part_scale"] = part
        rounded[name] = quantized[name] * (quantized[base + ".weight_scale"] * part)[:, None]
    save_file(quantized, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(rounded, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "toy_int8"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_all_three_are_used_in_one_model_that_says_what_the_plain_one_does(
    installed: None, tmp_path: Path
) -> None:
    plain = write_tiny_llama(tmp_path / "plain")
    quantized = quantize(plain, tmp_path / "quantized")
    options = {"load_format": "toy_loader", "attention_backend": "CUSTOM"}

    told = texts(quantized, **options)

    toy = parts()
    assert toy.asked == [False, True]
    assert toy.path == "vllm_style_parts.ToyBackend"
    assert toy.methods == ["toy_int8"] and toy.found is toy.ToyInt8Config
    assert sorted(toy.streamed) == sorted(load_file(quantized / "model.safetensors"))
    assert set(toy.built) == {2}, "one for both layers, once a step"
    steps = len(toy.built)
    assert told == texts(plain)
    assert len(toy.built) == steps, "the built-in backend was used"


def test_quantized_layers_are_split_over_two_ranks(installed: None, tmp_path: Path) -> None:
    plain = write_tiny_llama(tmp_path / "plain")
    quantized = quantize(plain, tmp_path / "quantized")
    shutil.copy(plain / "config.json", quantized)
    host = Host(("worker",), PluginSettings())
    assert host.problems() == []

    def run(group: TensorParallelGroup) -> torch.Tensor:
        return logits_of(quantized, parts().ToyInt8Config([]))

    wanted = logits_of(plain, None)
    for logits in run_ranks(2, run):
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4)


def logits_of(folder: Path, quant_config: Any) -> torch.Tensor:
    config = make_vllm_config(folder)
    config.quant_config = quant_config
    model = load_model(config)
    return StepRunner(config, model).step([(PROMPTS[2], 0, [1, 2, 3])])


def test_layers_are_left_alone_by_their_names_in_the_checkpoint(
    installed: None, tmp_path: Path
) -> None:
    Host(("worker",), PluginSettings())
    config = make_vllm_config(write_tiny_llama(tmp_path / "model"))
    config.quant_config = parts().ToyInt8Config(
        ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj", "down_proj"]
    )
    model = load_model(config)
    assert config.quant_config.packed_modules_mapping["qkv_proj"] == ["q_proj", "k_proj", "v_proj"]
    kinds = {type(each.quant_method).__name__ for each in model.modules() if hasattr(each, "bias")}
    assert kinds == {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}
