"""``--hf-overrides``: what it says of a model counts more than a folder or a GGUF file does, and it
may say which class serves the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine import LLM, SamplingParams
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError, ModelFileError
from hookserve.hookspecs import Host, ModelEntry, PluginSettings, bootstrap, hookimpl
from hookserve.plugins_builtin.llama import LlamaForCausalLM
from tiny_gguf import CONTEXT, write_tiny_gguf
from tiny_llama import write_tiny_llama


class StubbornLlama(LlamaForCausalLM):
    """Always says token 5."""

    def compute_logits(self, hidden_states: Any) -> Any:
        logits = super().compute_logits(hidden_states)
        logits[..., 5] = 1e4
        return logits


class Stubborn:
    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry("StubbornForCausalLM", StubbornLlama)


@pytest.fixture
def host() -> Iterator[Host]:
    found = bootstrap(["front"], PluginSettings(allow=()))
    yield found
    found.close()


def says(model: Path, **overrides: Any) -> list[int]:
    with LLM(str(model), plugins=[Stubborn()], hf_overrides=overrides) as llm:
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        return llm.generate([[1, 2]], params)[0].outputs[0].token_ids


@pytest.mark.checklist(47, 48)
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_another_class_serves_the_same_files(
    kind: str, tmp_path: Path, torch_threads: None
) -> None:
    if kind == "folder":
        model = write_tiny_llama(tmp_path / "model")
    else:
        model = write_tiny_gguf(tmp_path / "model.gguf").path
    assert says(model) != [5, 5, 5]
    assert says(model, architectures=["StubbornForCausalLM"]) == [5, 5, 5]


def test_a_folder_that_names_no_class_is_served_by_the_one_that_is_stated(
    host: Host, tmp_path: Path
) -> None:
    model = write_tiny_llama(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    for stated in ([], None, "LlamaForCausalLM"):
        (model / "config.json").write_text(json.dumps({**config, "architectures": stated}))
        with pytest.raises(ModelFileError, match=r"under 'architectures'; expected a list .*class"):
            EngineArgs(model=str(model)).to_engine_config(host)
    args = EngineArgs(model=str(model), hf_overrides={"architectures": ["OPTForCausalLM"]})
    assert args.to_engine_config(host).model.architectures == ("OPTForCausalLM",)


def test_a_class_that_is_stated_wrongly_is_the_overrides_fault(host: Host, tmp_path: Path) -> None:
    args = EngineArgs(
        model=str(write_tiny_llama(tmp_path / "model")), hf_overrides={"architectures": "Llama"}
    )
    with pytest.raises(ConfigError, match=r"--hf-overrides .*'Llama'.*expected a list"):
        args.to_engine_config(host)


def test_overrides_reach_deep_in_what_a_gguf_file_says(host: Host, tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "model.gguf").path
    plain = EngineArgs(model=str(model)).to_engine_config(host).model
    changes = {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "toy": {"a": {"b": 1}}}
    changed = EngineArgs(model=str(model), hf_overrides=changes).to_engine_config(host).model
    theta = plain.hf_config["rope_parameters"]["rope_theta"]
    assert changed.hf_config["rope_parameters"] == {
        "rope_theta": theta,
        "rope_type": "linear",
        "factor": 2.0,
    }
    assert changed.hf_config["toy"] == {"a": {"b": 1}}
    assert (plain.max_model_len, changed.max_model_len) == (CONTEXT, 2 * CONTEXT)
    assert changed.architectures == plain.architectures == ("LlamaForCausalLM",)
