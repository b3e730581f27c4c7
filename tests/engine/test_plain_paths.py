"""What is fast is left out of a whole model where it would pass a plugin over, which is named."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine import LLM, SamplingParams
from hookserve.hookspecs import Named, hookimpl
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.paged_attention import PagedAttentionBackend, PagedAttentionImpl

WIDE_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
"""The tiny model's weights in heads that the compiled kernels take."""


class Counting(PagedAttentionImpl):
    calls = 0

    def forward(self, *args: Any) -> torch.Tensor:
        type(self).calls += 1
        return super().forward(*args)


class MyPaged(PagedAttentionBackend):
    @staticmethod
    def get_impl_cls() -> Any:
        return Counting


class Patching:
    """Takes the name of the plain attention, and patches an op when the model is there."""

    def __init__(self, patch: Any) -> None:
        self._patch = patch

    @hookimpl
    def attention_backend(self) -> Any:
        return Named("paged", MyPaged)

    @hookimpl
    def model_loaded(self) -> None:
        self._patch()


class PatchingAttention:
    """Patches the plain attention once layers have been built with a fast one."""

    ops: OpSet

    def __init__(self) -> None:
        self.calls = 0

    @hookimpl
    def model_loaded(self, config: Any) -> None:
        self.ops = config.compilation_config.ops
        original = PagedAttentionImpl._decode

        def counted(impl: Any, *args: Any) -> torch.Tensor:
            self.calls += 1
            return original(impl, *args)

        PagedAttentionImpl._decode = counted  # type: ignore[method-assign]


def test_a_patch_of_attention_is_heeded_also_when_the_model_is_loaded(
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    torch_threads: None,
) -> None:
    monkeypatch.setattr(PagedAttentionImpl, "_decode", PagedAttentionImpl._decode)
    plugin = PatchingAttention()
    options: dict[str, Any] = {"dtype": "bfloat16", "hf_overrides": WIDE_HEADS}
    with (
        caplog.at_level(logging.INFO, "hookserve"),
        LLM(str(tiny_llama), plugins=[plugin], num_gpu_blocks_override=64, **options) as llm,
    ):
        (me,) = [each.identity for each in llm.plugins.describe() if "Patching" in each.name]
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True, temperature=0))
    why = f"{me} overrides PagedAttentionImpl._decode"
    assert f"plain path for attention because {why}" in caplog.text
    (row,) = (row for row in plugin.ops.rows() if row.op == "paged_attention_decode")
    assert (row.implementation, row.built, row.calls) == ("paged", 2, plugin.calls)
    assert plugin.calls >= 2 * 3, "two layers, and three steps behind the prompt's"


def test_a_plugin_is_named_that_takes_attention_or_patches_a_model_that_is_loaded(
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    torch_threads: None,
) -> None:
    original, calls = RMSNorm._scale, []

    def counted(self: Any, normalised: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        calls.append(1)
        return original(self, normalised, dtype)

    plugin = Patching(lambda: setattr(RMSNorm, "_scale", counted))
    monkeypatch.setattr(RMSNorm, "_scale", original)  # is back afterwards
    monkeypatch.setattr(Counting, "calls", 0)
    options: dict[str, Any] = {"dtype": "bfloat16", "hf_overrides": WIDE_HEADS}
    with (
        caplog.at_level(logging.INFO, "hookserve"),
        LLM(str(tiny_llama), plugins=[plugin], num_gpu_blocks_override=64, **options) as llm,
    ):
        (identity,) = [each.identity for each in llm.plugins.describe() if "Patching" in each.name]
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True, temperature=0))
    assert Counting.calls and len(calls) / 5 == Counting.calls / 2
    text = caplog.text
    assert f"plain path for attention because {identity} overrides attention backend" in text
    assert f"plain path for rms_norm because {identity} overrides RMSNorm._scale" in text
