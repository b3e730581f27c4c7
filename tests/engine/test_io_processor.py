"""The IO processor that an operator names: chosen, checked and built, though no route asks it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from hookserve.engine.errors import ConfigError
from hookserve.engine.io_processor import (
    IOProcessor,
    Renderer,
    build_io_processor,
    open_io_processor,
)
from hookserve.engine.model_section import HfConfig
from hookserve.engine.pooling_params import PoolingParams
from hookserve.hookspecs import Host, Named, PluginError, PluginSettings, UnknownNameError, hookimpl


class Lines(IOProcessor[str, list[str]]):
    def parse_data(self, data: object) -> str:
        if not isinstance(data, str):
            raise ValueError("data: expected a text")
        return data

    def pre_process(self, prompt: str, request_id: str | None = None, **kwargs: Any) -> list[str]:
        return prompt.splitlines()

    def post_process(
        self, model_output: Any, request_id: str | None = None, **kwargs: Any
    ) -> list[str]:
        return [f"{request_id}:{each}" for each in model_output]


class Half(IOProcessor[str, str]):
    def parse_data(self, data: object) -> str:
        return ""


class Broken(Lines):
    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        raise RuntimeError("no weights")


class Processors:
    @hookimpl
    def io_processor(self) -> list[Named]:
        return [Named("lines", Lines), Named("half", Half), Named("broken", Broken)]


@pytest.fixture
def host() -> Host:
    return Host(["front"], PluginSettings(allow=()), [Processors()])


def config_of(name: str | None, **checkpoint: Any) -> Any:
    model = SimpleNamespace(io_processor_plugin=name, hf_config=HfConfig(checkpoint))
    return SimpleNamespace(model_config=model)


def test_the_chosen_one_is_built_and_says_that_nobody_asks_it(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer: Any = object()
    with caplog.at_level(logging.WARNING):
        made = open_io_processor(host, config_of("lines", io_processor_plugin="half"), tokenizer)
    assert isinstance(made, Lines)
    assert "io processor lines (Lines) is built, and no route asks it" in caplog.text
    by_checkpoint = open_io_processor(host, config_of(None, io_processor_plugin="lines"), tokenizer)
    assert isinstance(by_checkpoint, Lines), "a checkpoint may name one"
    assert open_io_processor(host, config_of(None), tokenizer) is None


@pytest.mark.parametrize("path", [f"{__name__}:Lines", "antigravity.Lines"])
def test_a_checkpoint_has_nothing_imported(host: Host, path: str) -> None:
    with pytest.raises(ConfigError, match=f"io_processor_plugin is '{path}': expected the name"):
        open_io_processor(host, config_of(None, io_processor_plugin=path), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("linse", UnknownNameError, "lines"),
        ("half", PluginError, "half': Half lacks post_process, pre_process"),
        ("broken", PluginError, "broken raised RuntimeError: no weights"),
        ("collections:OrderedDict", PluginError, "is not a subclass of"),
    ],
)
def test_one_that_cannot_work_is_refused(
    host: Host, name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        build_io_processor(host, config_of(name), None, name)


def test_its_methods_go_together() -> None:
    config: Any = object()
    processor = Lines(config, Renderer(config, config))
    assert processor.vllm_config is config
    assert Renderer(config, config).get_tokenizer() is config
    assert processor.merge_pooling_params() == PoolingParams(task="plugin")
    mine = PoolingParams(task="embed")
    assert processor.merge_pooling_params(mine) is mine
    assert processor.merge_sampling_params().n == 1

    async def outputs() -> AsyncGenerator[tuple[int, str], None]:
        yield 1, "b"
        yield 0, "a"

    async def both_ways() -> tuple[Any, list[str]]:
        prompts = await processor.pre_process_async("x\ny")
        return prompts, await processor.post_process_async(outputs(), "r")

    assert asyncio.run(both_ways()) == (["x", "y"], ["r:a", "r:b"]), "in the order of the prompts"
