"""The registry of models as packages written for vLLM ask it, and what becomes of their classes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import run_command
from hookserve.engine import LLM, SamplingParams
from hookserve.hookspecs import Host, HostError, PluginError, PluginSettings, bootstrap
from hookserve.plugins_builtin.llama import LlamaForCausalLM
from plugin_folder import install_plugin
from tiny_llama import write_tiny_llama

OWNER = "models-dist:vllm.general_plugins:register_models"
PLUGIN = """
def register():
    from vllm import ModelRegistry
    if "FirstForCausalLM" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("FirstForCausalLM", "models_pkg.model:FirstForCausalLM")
        ModelRegistry.register_model("BrokenForCausalLM", "models_pkg.broken:Model")


def register_class():
    from torch import nn
    from vllm import ModelRegistry

    class HalfAModel(nn.Module):
        def embed_input_ids(self, input_ids): ...

    ModelRegistry.register_model("HalfForCausalLM", HalfAModel)
"""
MODEL = """
from vllm import ModelRegistry
from vllm.model_executor.models.llama import LlamaForCausalLM


class FirstForCausalLM(LlamaForCausalLM):
    supports_multimodal = True

    def compute_logits(self, hidden_states):
        logits = super().compute_logits(hidden_states)
        logits[..., 32] = 1e4  # the token of "A" in the tests' byte tokenizer
        return logits
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    functions = {"register_models": "models_pkg:register", "half": "models_pkg:register_class"}
    install_plugin(
        site, "models-dist", {"models_pkg": PLUGIN}, groups={"vllm.general_plugins": functions}
    )
    (site / "models_pkg" / "model.py").write_text(textwrap.dedent(MODEL))
    (site / "models_pkg" / "broken.py").write_text("import not_there\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


@pytest.fixture
def make_host(site: Path, vllm_facade: None) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(*roles: Any, lists: str = "register_models") -> Host:
        settings = PluginSettings(allow=(), adapter_lists={"vllm": lists})
        hosts.append(bootstrap(roles, settings))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def registry() -> Any:
    return sys.modules["vllm"].ModelRegistry


@pytest.mark.checklist(21, 32, 38)
def test_a_worker_answers_by_the_class_itself(make_host: Callable[..., Host]) -> None:
    host = make_host("worker")
    assert "models_pkg.model" not in sys.modules
    found, name = registry().resolve_model_cls(["Unknown", "FirstForCausalLM"], None)
    assert (name, found.__module__) == ("FirstForCausalLM", "models_pkg.model")
    assert issubclass(found, LlamaForCausalLM)
    (mine,) = [each for each in host.registry("model").claims() if each.name == name]
    assert (mine.owner, mine.used) == (OWNER, True)
    facts, name = registry().inspect_model_cls("FirstForCausalLM", None)
    assert (facts.architecture, name) == ("FirstForCausalLM", "FirstForCausalLM")
    answers = {
        "is_text_generation_model": True,
        "is_pooling_model": False,
        "is_multimodal_model": True,
        "is_multimodal_raw_input_only_model": False,
        "is_pp_supported_model": True,
        "model_has_inner_state": False,
        "is_attention_free_model": False,
        "is_hybrid_model": False,
        "is_noops_model": False,
        "is_transcription_model": False,
        "is_transcription_only_model": False,
    }
    for question, answer in answers.items():
        assert getattr(registry(), question)("FirstForCausalLM", None) is answer, question


@pytest.mark.checklist(38, 39, 49)
def test_a_front_asks_the_inspector(
    make_host: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKSERVE_CACHE", str(tmp_path / "cache"))
    make_host("front")
    assert registry().is_multimodal_model(["FirstForCausalLM"], None) is True
    assert "models_pkg.model" not in sys.modules
    with pytest.raises(PluginError, match=r"'BrokenForCausalLM'.*No module named 'not_there'"):
        registry().inspect_model_cls("BrokenForCausalLM", None)


@pytest.mark.checklist(34, 35)
def test_an_architecture_that_nobody_registers_is_a_value_error(
    make_host: Callable[..., Host],
) -> None:
    make_host("worker")
    message = r"'FirstForCausalML'\) are not supported for now: .*nearest: FirstForCausalLM, "
    with pytest.raises(ValueError, match=message):
        registry().is_pooling_model("FirstForCausalML", None)


@pytest.mark.checklist(23, 45)
def test_a_class_is_looked_at_when_it_is_registered_and_refused_when_it_is_wanted(
    make_host: Callable[..., Host], caplog: pytest.LogCaptureFixture
) -> None:
    make_host("front", lists="half")
    lacks = r"lacks forward(input_ids, positions), compute_logits, load_weights"
    (told,) = [each for each in caplog.messages if each.startswith("HalfForCausalLM: ")]
    assert lacks in told
    with pytest.raises(PluginError) as caught:
        registry().inspect_model_cls("HalfForCausalLM", None)
    assert lacks in str(caught.value)
    assert caught.value.identity == "models-dist:vllm.general_plugins:half"


def test_nothing_can_be_asked_before_plugins_are_loaded(vllm_facade: None) -> None:
    from vllm import ModelRegistry  # type: ignore[import-not-found]

    with pytest.raises(HostError, match="there is no plugin host"):
        ModelRegistry.is_pooling_model("LlamaForCausalLM", None)


def forced(model: Path | str, **options: Any) -> list[int]:
    wanted = PluginSettings(allow=(), adapter_lists={"vllm": "register_models"})
    with LLM(str(model), plugin_settings=wanted, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        return llm.generate([[1, 2]], params)[0].outputs[0].token_ids


@pytest.mark.checklist(40, 41, 42, 46, 47)
def test_a_checkpoint_is_served_by_the_class_that_it_or_the_override_names(
    site: Path, vllm_facade: None, tmp_path: Path
) -> None:
    named = write_tiny_llama(tmp_path / "named", architecture="FirstForCausalLM")
    plain = write_tiny_llama(tmp_path / "plain")
    assert forced(named, num_gpu_blocks_override=64) == [32, 32, 32]
    override = {"architectures": ["FirstForCausalLM"]}
    assert forced(plain, num_gpu_blocks_override=64, hf_overrides=override) == [32, 32, 32]


@pytest.mark.checklist(35, 116)
def test_the_model_of_a_plugin_that_the_list_leaves_out_is_unknown_and_the_list_is_named(
    site: Path, vllm_facade: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "")
    model = write_tiny_llama(tmp_path / "named", architecture="FirstForCausalLM")
    message = rf"are not supported for now.*{OWNER} is blocked by VLLM_PLUGINS"
    with pytest.raises(ValueError, match=message):
        LLM(str(model))


@pytest.mark.checklist(49)
def test_a_class_that_cannot_be_imported_stops_a_server_before_its_engine(
    site: Path, tmp_path: Path
) -> None:
    model = write_tiny_llama(tmp_path / "broken", architecture="BrokenForCausalLM")
    env = {"PYTHONPATH": str(site), "VLLM_PLUGINS": "register_models"}
    done = run_command(["run", str(model)], env=env)
    assert done.returncode == 78
    last = done.stderr.splitlines()[-1]
    assert OWNER in last
    assert "'BrokenForCausalLM'" in last
    assert "No module named 'not_there'" in last
    assert 'models_pkg/broken.py", line 1' in done.stderr.removesuffix(last)
    assert "(Engine pid=" not in done.stderr
