"""Loaders: choice by name, strictness about the checkpoint, and what a model class must be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hookserve.engine.errors import ConfigError, ModelFileError, UnknownArchitectureError
from hookserve.engine.model_loader import (
    DefaultModelLoader,
    GGUFModelLoader,
    get_model_loader,
    initialize_model,
)
from hookserve.engine.model_registry import check_architecture, resolve_architecture
from hookserve.hookspecs import ModelEntry, Named, bootstrap, hookimpl
from hookserve.hookspecs.errors import PluginError, UnknownNameError
from hookserve.hookspecs.settings import PluginSettings
from hookserve.plugins_builtin.llama import LlamaForCausalLM
from hookserve.plugins_builtin.mistral import MistralForCausalLM
from step_runner import load_model, make_vllm_config


class NotALoader:
    pass


class OtherLoader(DefaultModelLoader):
    pass


class NotAModel:
    pass


class OldModel(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()

    def forward(self, input_ids: Any, positions: Any) -> None: ...

    embed_input_ids = compute_logits = load_weights = forward


class NoLogits(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()

    def forward(self, input_ids: Any, positions: Any) -> None: ...

    embed_input_ids = load_weights = forward


class NoPositions(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()

    def forward(self, input_ids: Any) -> None: ...

    embed_input_ids = compute_logits = load_weights = forward


class Entries:
    @hookimpl
    def register_model(self) -> list[ModelEntry]:
        models = (NotAModel, OldModel, NoLogits, NoPositions)
        return [ModelEntry(model.__name__, model) for model in models]

    @hookimpl
    def model_loader(self) -> list[Named]:
        return [Named("other", OtherLoader), Named("broken", NotALoader)]


@pytest.fixture
def host() -> Iterator[Any]:
    settings = PluginSettings(no_plugins=False)
    host = bootstrap({"front", "engine", "worker"}, settings, objects=[Entries()])
    yield host
    host.close()


def test_the_loader_goes_by_the_format_or_by_name(host: Any, tiny_llama: Path) -> None:
    config = make_vllm_config(tiny_llama)
    assert type(get_model_loader(config, host)) is DefaultModelLoader
    config.model_config.format = "gguf"
    assert type(get_model_loader(config, host)) is GGUFModelLoader
    config.load_config.load_format = "other"
    assert type(get_model_loader(config, host)) is OtherLoader


def test_a_loader_that_is_none_is_refused(host: Any, tiny_llama: Path) -> None:
    config = make_vllm_config(tiny_llama)
    config.load_config.load_format = "broken"
    with pytest.raises(ConfigError, match=r"'broken': .*NotALoader.*BaseModelLoader"):
        get_model_loader(config, host)
    config.load_config.load_format = "safetensor"
    with pytest.raises(UnknownNameError, match="safetensors"):
        get_model_loader(config, host)


def test_the_registered_class_is_built_in_the_models_dtype(host: Any, tiny_llama: Path) -> None:
    before = torch.get_default_dtype()
    model = initialize_model(make_vllm_config(tiny_llama, "bfloat16"))
    assert type(model) is LlamaForCausalLM
    assert {param.dtype for param in model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == before


def test_weights_arrive_unchanged(tiny_llama: Path) -> None:
    model = load_model(make_vllm_config(tiny_llama))
    assert not model.training
    stored = load_file(tiny_llama / "model.safetensors")
    assert torch.equal(model.model.embed_tokens.weight[:260], stored["model.embed_tokens.weight"])
    fused = model.model.layers[1].mlp.gate_up_proj.weight
    plain = fused.to_dense() if fused.is_mkldnn else fused
    at = "model.layers.1.mlp."
    expected = [stored[at + "gate_proj.weight"], stored[at + "up_proj.weight"]]
    assert torch.equal(plain, torch.cat(expected))


def rewrite(source: Path, target: Path, change: Any) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def test_a_missing_weight_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    folder = rewrite(tiny_llama, tmp_path / "m", lambda tensors: tensors.pop(name))
    with pytest.raises(ModelFileError, match=rf"{folder}: .*lacks.*: {name}$"):
        load_model(make_vllm_config(folder))


def test_an_unexpected_weight_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    extra = {"model.layers.0.mlp.expert.weight": torch.zeros(2)}
    folder = rewrite(tiny_llama, tmp_path / "m", lambda tensors: tensors.update(extra))
    with pytest.raises(ModelFileError, match=rf"{folder}: unexpected weight .*mlp\.expert"):
        load_model(make_vllm_config(folder))


def test_a_weight_of_another_shape_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    folder = rewrite(
        tiny_llama, tmp_path / "m", lambda tensors: tensors.update({name: torch.zeros(8, 64)})
    )
    with pytest.raises(ModelFileError, match=rf"\[8, 64\].*\[32, 64\].*tensor '{name}'"):
        load_model(make_vllm_config(folder))


def test_a_stored_copy_of_a_tied_head_is_left_out(tiny_llama: Path, tmp_path: Path) -> None:
    folder = rewrite(tiny_llama, tmp_path / "m", lambda tensors: None)
    config = make_vllm_config(folder)
    config.model_config.hf_config.update({"tie_word_embeddings": True})
    model = load_model(config)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_seam_decides_which_files_are_read(tiny_llama: Path, tmp_path: Path) -> None:
    folder = rewrite(
        tiny_llama, tmp_path / "m", lambda tensors: tensors["model.norm.weight"].fill_(3.0)
    )

    class Redirected(DefaultModelLoader):
        def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
            return initialize_model(vllm_config, model_class=LlamaForCausalLM)

        def _prepare_weights(self, model_name_or_path: str) -> tuple[str, list[str]]:
            return str(folder), [str(folder / "model.safetensors")]

    config = make_vllm_config(tiny_llama)
    model: Any = Redirected(config.load_config).load_model(config, config.model_config)
    assert model.model.norm.weight.eq(3.0).all()


def test_each_loader_refuses_the_others_files(tiny_llama: Path) -> None:
    config = make_vllm_config(tiny_llama)
    with pytest.raises(ModelFileError, match=r"not a \.gguf file"):
        GGUFModelLoader(config.load_config).download_model(config.model_config)


def test_an_unknown_architecture_names_the_nearest(host: Any) -> None:
    with pytest.raises(UnknownArchitectureError, match=r"'LlamaForCausalML'.*LlamaForCausalLM"):
        check_architecture(["LlamaForCausalML"], host)


def test_the_first_registered_architecture_wins(host: Any) -> None:
    name, found = resolve_architecture(["Unknown", "MistralForCausalLM"], host)
    assert (name, found) == ("MistralForCausalLM", MistralForCausalLM)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("NotAModel", "not a subclass of torch.nn.Module"),
        ("OldModel", "__init__"),
        ("NoLogits", "lacks the method 'compute_logits'"),
        ("NoPositions", "does not accept input_ids and positions"),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused_with_its_owner(
    host: Any, name: str, fault: str
) -> None:
    with pytest.raises(PluginError, match=rf"object:.*Entries.*{name}.*{fault}"):
        resolve_architecture([name], host)
