"""Which attention backends layers are offered where the operator names none."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.model_parts import prepare_parts
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Named, PluginSettings, bootstrap, hookimpl
from hookserve.ops.attention import Attention
from hookserve.ops.context import set_model_context
from hookserve.ops.paged_attention import PagedAttentionBackend, PagedAttentionImpl
from hookserve.ops.triton.attention import TritonAttentionBackend


class MyPaged(PagedAttentionBackend):
    pass


class TakesTheName:
    @hookimpl
    def attention_backend(self) -> Named:
        return Named("paged", MyPaged)


@pytest.fixture
def offered(tiny_llama: Path) -> Iterator[Callable[..., list[str]]]:
    """``offered(device, *plugins)``: the names, the first one first."""
    with ExitStack() as stack:

        def ask(device: str, *plugins: Any) -> list[str]:
            settings = PluginSettings(no_plugins=not plugins)
            host = bootstrap({"front", "engine", "worker"}, settings, objects=plugins)
            stack.callback(host.close)
            args = EngineArgs(model=str(tiny_llama))
            config = VllmConfig.from_engine_config(args.to_engine_config(host))
            config.device_config.device_type = device
            prepare_parts(config, host)
            return [each.get_name() for each in config.attention_config.backend_classes]

        yield ask


def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *others: None if name == "triton" else find(name, *others),
    )


def test_each_device_has_its_own_and_the_plain_one(offered: Any) -> None:
    assert offered("cuda") == ["triton", "paged"]


def test_a_cpu_is_not_offered_triton(offered: Any) -> None:
    assert offered("cpu") == ["compiled", "paged"]


def test_a_gpu_without_triton_attends_with_torch_and_says_why(
    offered: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_triton(monkeypatch)
    with caplog.at_level(logging.INFO, "hookserve"):
        assert offered("cuda") == ["paged"]
    assert "layers attend with torch: Triton is not installed" in caplog.text


def test_a_gpu_does_not_pass_over_a_plugin_that_takes_the_plain_ones_name(
    offered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hookserve"):
        assert offered("cuda", TakesTheName()) == ["paged"]
    assert "overrides attention backend 'paged'" in caplog.text


def test_a_gpu_does_not_pass_over_a_patch_of_the_plain_one(
    offered: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PagedAttentionImpl, "_decode", lambda *args: None)
    with caplog.at_level(logging.INFO, "hookserve"):
        assert offered("cuda") == ["paged"]
    assert "plain path for attention because" in caplog.text


def test_a_layer_that_triton_does_not_take_is_the_plain_ones() -> None:
    for size, expected in ((256, "triton"), (264, "paged")):
        with set_model_context(
            static_forward_context={},
            dtype=torch.float32,
            block_size=4,
            attention_backends=(TritonAttentionBackend, PagedAttentionBackend),
        ):
            layer = Attention(1, size, 1.0, prefix="a")
        assert layer.attn_backend.get_name() == expected
