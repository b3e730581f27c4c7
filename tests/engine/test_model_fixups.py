"""Classes that change the whole configuration for one architecture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.model_fixups import VerifyAndUpdateConfig
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Named, PluginError, PluginSettings, bootstrap, hookimpl


class LargerBlocks(VerifyAndUpdateConfig):
    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        model_config.hf_config.sliding_window = 48

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        assert vllm_config.model_config.hf_config.sliding_window == 48
        vllm_config.cache_config.block_size = 64


class Bare:
    """Not derived from the base."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        vllm_config.scheduler_config.max_num_seqs = 3


class Refuses(VerifyAndUpdateConfig):
    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        raise ValueError("the model needs a GPU")


class Odd(VerifyAndUpdateConfig):
    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        vllm_config.cache_config.block_size = object()  # type: ignore[assignment]


@pytest.fixture
def configured(tiny_llama: Path) -> Iterator[Callable[[Any], VllmConfig]]:
    """A factory: the tree that workers get where one class is declared for the architecture."""
    hosts = []

    def make(fixup: Any, arch: str = "LlamaForCausalLM") -> VllmConfig:
        class Declares:
            @hookimpl
            def hf_config(self) -> Named:
                return Named(arch, fixup)

        host = bootstrap({"front", "engine", "worker"}, PluginSettings(), objects=[Declares()])
        hosts.append(host)
        return VllmConfig.from_engine_config(
            EngineArgs(model=str(tiny_llama)).to_engine_config(host)
        )

    yield make
    for host in hosts:
        host.close()


def test_what_it_changes_reaches_the_workers_tree(
    configured: Callable[..., VllmConfig], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tree = configured(LargerBlocks)
    assert tree.cache_config.block_size == 64
    assert tree.model_config.hf_config.sliding_window == 48
    (line,) = [each for each in caplog.messages if "cache_config.block_size" in each]
    assert line.startswith("object:Declares changed cache_config.block_size from 16 to 64")


def test_any_class_with_the_method_is_one(configured: Callable[..., VllmConfig]) -> None:
    assert configured(Bare).scheduler_config.max_num_seqs == 3


def test_of_another_architecture_it_is_not_asked(configured: Callable[..., VllmConfig]) -> None:
    assert configured(Refuses, arch="OPTForCausalLM").cache_config.block_size == 16


def test_what_it_raises_or_cannot_set_stops_the_start_under_its_name(
    configured: Callable[..., VllmConfig],
) -> None:
    message = "object:Declares .*hf_config 'LlamaForCausalLM' raised .*the model needs a GPU"
    with pytest.raises(PluginError, match=message):
        configured(Refuses)


def test_what_cannot_cross_to_another_process_is_refused(
    configured: Callable[..., VllmConfig],
) -> None:
    with pytest.raises(ConfigError, match=r"object:Declares .*cache_config\.block_size"):
        configured(Odd)


def test_the_base_alone_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match="must define verify_and_update_config"):
        VerifyAndUpdateConfig.verify_and_update_config(None)  # type: ignore[arg-type]
