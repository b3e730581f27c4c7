"""Samples of what packages for vLLM are made of, in this process: what a registry tells of their
models, and what comes out of a scheduler that fails. A server with them is ``tests/e2e``'s."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine.offline_host import offline_settings
from hookserve.hookspecs import Host, PluginError, PluginSettings, bootstrap
from plugin_folder import install_package
from step_runner import load_model, make_vllm_config
from tiny_models import write_tiny_model

MODELS = "vllm-samples:vllm.general_plugins:sample_models"
EMBEDDING = "SampleGemma2Embedding"


@pytest.fixture
def site(
    tmp_path: Path, source_root: Path, vllm_facade: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    site = tmp_path / "site"
    install_package(site, source_root / "tests" / "toys" / "vllm_samples")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    return site


@pytest.fixture
def worker(site: Path) -> Iterator[Host]:
    host = bootstrap(("worker",), PluginSettings(allow=(), adapter_lists={"vllm": "sample_models"}))
    yield host
    host.close()


@pytest.mark.checklist(19, 21, 45)
def test_an_embedding_model_is_registered_and_known_for_what_it_is(
    worker: Host, tmp_path: Path
) -> None:
    from vllm import ModelRegistry  # type: ignore[import-not-found]
    from vllm.config import PoolerConfig  # type: ignore[import-not-found]

    assert {"FirstTokenOPTForCausalLM", EMBEDDING} <= set(ModelRegistry.get_supported_archs())
    assert "vllm_samples.gemma2_embedding" not in sys.modules
    assert ModelRegistry.is_pooling_model([EMBEDDING], None) is True
    assert ModelRegistry.is_text_generation_model([EMBEDDING], None) is False
    facts, _ = ModelRegistry.inspect_model_cls([EMBEDDING], None)
    assert (facts.default_seq_pooling_type, facts.attn_type) == ("LAST", "decoder")
    assert ModelRegistry.is_pooling_model(["FirstTokenOPTForCausalLM"], None) is False
    model_class: Any = sys.modules["vllm_samples.gemma2_embedding"].SampleGemma2Embedding
    config = make_vllm_config(write_tiny_model("gemma2", tmp_path / "model"))
    config.model_config.pooler_config = PoolerConfig()
    model = load_model(config, model_class)
    assert model.pooler.get_supported_tasks() == {"embed", "token_embed"}
    embedded = model.embed_input_ids(torch.tensor([5, 6]))
    assert embedded.shape == (2, 64) and embedded.abs().sum() > 0
    with pytest.raises(PluginError, match=r"lacks compute_logits; it is a pooling model") as caught:
        ModelRegistry.resolve_model_cls([EMBEDDING], None)
    assert caught.value.identity == MODELS


@pytest.mark.checklist(35, 116, 117)
def test_an_empty_list_leaves_the_model_out(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import LLM

    model = write_tiny_model("opt", tmp_path / "opt")
    renamed = {"architectures": ["FirstTokenOPTForCausalLM"]}
    monkeypatch.setenv("VLLM_PLUGINS", "")
    with pytest.raises(ValueError, match="are not supported for now"):
        LLM(model=str(model), hf_overrides=renamed)


@pytest.mark.checklist(133)
def test_the_exception_of_a_scheduler_comes_out_of_the_engine(
    site: Path, tiny_llama: Path, torch_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import EngineArgs, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine  # type: ignore[import-not-found]
    from vllm_samples.engine import FailingScheduler  # type: ignore[import-not-found]

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with pytest.raises(Exception, match="this scheduler always fails") as caught:
        args = EngineArgs(model=str(tiny_llama), enforce_eager=True, scheduler_cls=FailingScheduler)
        engine = LLMEngine.from_engine_args(engine_args=args)
        engine.add_request("0", "foo", SamplingParams(max_tokens=1))
        engine.step()
    assert str(caught.value.__cause__) == "this scheduler always fails"


@pytest.mark.checklist(81, 84, 86, 90)
def test_a_program_that_could_run_an_engine_itself_may_have_one_elsewhere(
    site: Path, tiny_llama: Path
) -> None:
    """With the stat logger, also where nobody asks for lines of statistics."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM  # type: ignore[import-not-found]
    from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found]
        load_stat_logger_plugin_factories,
    )

    async def generate() -> None:
        args = AsyncEngineArgs(model=str(tiny_llama), disable_log_stats=True, max_model_len=64)
        engine = AsyncLLM.from_engine_args(args)
        try:
            params = SamplingParams(max_tokens=3, ignore_eos=True)
            async for output in engine.generate("hi", params, request_id="1"):
                last = output
            assert last.finished and len(last.outputs[0].token_ids) == 3
        finally:
            engine.shutdown()

    host = bootstrap(("front", "engine", "worker"), offline_settings())
    host.hold()
    try:
        (factory,) = load_stat_logger_plugin_factories()
        made: list[Any] = []
        whole = factory.__init__

        def note(self: Any, *args: Any) -> None:
            whole(self, *args)
            made.append(self)

        factory.__init__ = note
        asyncio.run(generate())
        assert factory(made[0].vllm_config).engine_idx == 0
    finally:
        host.close()
    (mine, _) = made
    assert (mine.num_tokens, mine.vllm_config.model_config.max_model_len) == (3, 64)
    assert mine.num_reports >= 3
