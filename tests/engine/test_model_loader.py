"""Loaders: choice by name, strictness about the checkpoint, and what a model class must be."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hookserve.engine import LLM, EngineArgs
from hookserve.engine.errors import ConfigError, ModelFileError, UnknownArchitectureError
from hookserve.engine.model_loader import (
    DefaultModelLoader,
    GGUFModelLoader,
    get_model_loader,
    initialize_model,
)
from hookserve.engine.model_registry import check_architecture, resolve_architecture
from hookserve.engine.vllm_config import VllmConfig
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
    def __init__(
        self,
        config: Any,
        cache_config: Any = None,
        quant_config: Any = None,
        *,
        prefix: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.given = (config, cache_config, quant_config, prefix, kwargs)
        self.norm = nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids: Any, positions: Any) -> None: ...

    embed_input_ids = compute_logits = load_weights = forward


class AnyKeywords(OldModel):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(kwargs["vllm_config"].model_config.hf_config, prefix=kwargs["prefix"])


class NoPrefix(OldModel):
    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config.model_config.hf_config)


class OnlyAPart(OldModel):
    def __init__(self, *, quant_config: Any = None, **kwargs: Any) -> None:
        super().__init__(kwargs["config"], quant_config=quant_config, **_without_config(kwargs))


def _without_config(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "config"}


class OtherStyle(OldModel):
    def __init__(self, settings: Any, prefix: str = "") -> None:
        super().__init__(settings)


class AsksForMore(OldModel):
    def __init__(self, config: Any, tokenizer: Any) -> None:
        super().__init__(config)


class OldForward(OldModel):
    def forward(self, input_ids: Any, positions: Any, kv_caches: Any) -> None: ...  # type: ignore[override]


class NeedsAField(OldModel):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config.model_config.hf_config)
        print(vllm_config.model_config.hf_text_config.number_of_wheels)


class HasAFault(NeedsAField):
    number: int

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        nn.Module.__init__(self)
        print(self.number)


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
        models = (
            NotAModel,
            NoLogits,
            NoPositions,
            OldModel,
            OnlyAPart,
            AnyKeywords,
            NoPrefix,
            OtherStyle,
            AsksForMore,
            OldForward,
            NeedsAField,
            HasAFault,
        )
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


def test_what_is_said_for_a_plugins_loader_reaches_it_and_none_other(
    host: Any, tiny_llama: Path
) -> None:
    args = EngineArgs(
        model=str(tiny_llama), load_format="other", model_loader_extra_config={"threads": 3}
    )
    config = VllmConfig.from_engine_config(args.to_engine_config(host))
    loader = get_model_loader(config, host)
    assert type(loader) is OtherLoader
    assert loader.load_config.model_loader_extra_config == {"threads": 3}
    config.load_config.load_format = "auto"
    with pytest.raises(ConfigError, match=r"{'threads': 3}: the loader 'safetensors' of .* none"):
        get_model_loader(config, host)


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


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("mlp.gate_proj", r"mlp\.gate_up_proj\.weight \(part 0\)"),
        ("mlp.up_proj", r"mlp\.gate_up_proj\.weight \(part 1\)"),
        ("self_attn.k_proj", r"self_attn\.qkv_proj\.weight \(part k\)"),
    ],
)
def test_a_missing_part_of_a_merged_weight_is_named(
    name: str, missing: str, tiny_llama: Path, tmp_path: Path
) -> None:
    whole = f"model.layers.1.{name}.weight"
    folder = rewrite(tiny_llama, tmp_path / "m", lambda tensors: tensors.pop(whole))
    with pytest.raises(ModelFileError, match=rf"lacks.*: model\.layers\.1\.{missing}$"):
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


@pytest.mark.checklist(45)
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("NotAModel", "not a subclass of torch.nn.Module"),
        ("OtherStyle", r"is not constructed as __init__\(\*, vllm_config, prefix=''\)"),
        ("AsksForMore", "constructor that needs 'tokenizer', which nobody gives"),
        ("OldForward", "forward that needs 'kv_caches', which nobody gives"),
        ("NoLogits", "lacks compute_logits"),
        ("NoPositions", r"lacks forward\(input_ids, positions\)"),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused_with_its_owner(
    host: Any, name: str, fault: str
) -> None:
    with pytest.raises(PluginError, match=rf"object:.*Entries.*{name}.*{fault}"):
        resolve_architecture([name], host)


def build(tiny_llama: Path, name: str) -> Any:
    config = make_vllm_config(tiny_llama)
    config.model_config.architectures = [name]
    return config, initialize_model(config, prefix="here")


@pytest.mark.checklist(44)
@pytest.mark.parametrize("name", ["OldModel", "OnlyAPart"])
def test_an_old_style_constructor_gets_parts_of_the_configuration(
    host: Any, tiny_llama: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    config, model = build(tiny_llama, name)
    hf_config, cache_config, quant_config, prefix, others = model.given
    assert hf_config is config.model_config.hf_config
    assert cache_config is config.cache_config
    assert quant_config is None
    assert prefix == "here"
    assert set(others) == {"lora_config", "scheduler_config"}
    assert re.search(rf"model {name} of object:\S*Entries\S* is constructed in an old", caplog.text)


def test_constructors_of_the_new_style_get_what_they_take(
    host: Any, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert build(tiny_llama, "AnyKeywords")[1].given[3] == "here"
    assert build(tiny_llama, "NoPrefix")[1].given[3] == ""
    assert "old style" not in caplog.text


def test_a_field_that_a_model_needs_and_the_checkpoint_lacks_is_named(
    host: Any, tiny_llama: Path
) -> None:
    message = r"tiny-llama: .*nothing under 'number_of_wheels'; expected .*NeedsAField of object:"
    with pytest.raises(ModelFileError, match=message):
        build(tiny_llama, "NeedsAField")
    with pytest.raises(AttributeError, match="no attribute 'number'"):  # a fault of the class
        build(tiny_llama, "HasAFault")


def test_a_llama_without_its_norms_epsilon_is_refused(tiny_llama: Path) -> None:
    config = make_vllm_config(tiny_llama)
    del config.model_config.hf_config.rms_norm_eps
    with pytest.raises(ModelFileError, match=r"nothing under 'rms_norm_eps'.*LlamaForCausalLM"):
        load_model(config)


class OwnReader(DefaultModelLoader):
    def load_weights(self, model: Any, model_config: Any) -> None:
        model.load_weights(self.get_all_weights(model_config, model))


class Changer:
    @hookimpl
    def model_loader(self) -> Named:
        return Named("own", OwnReader)

    @hookimpl
    def weights(self, iterator: Any) -> Any:
        raise AssertionError("nobody asks")


def test_a_loader_that_keeps_its_stream_from_plugins_is_named(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hookserve"):
        LLM(str(tiny_llama), load_format="own", plugins=[Changer()]).shutdown()
    assert "OwnReader hands no weights" in caplog.text
    assert "the hook weights of object:Changer is not called" in caplog.text
