"""Which layers use compiled kernels, and that the choice comes with its reason."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookserve.engine.kernel_choice import choose_kernels
from hookserve.ops.activation import SiluAndMul
from hookserve.ops.attention import Attention
from hookserve.ops.compiled_attention import CompiledAttentionBackend, CompiledAttentionImpl
from hookserve.ops.context import set_model_context
from hookserve.ops.cpu_kernels import CpuKernels
from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm
from hookserve.ops.paged_attention import PagedAttentionBackend, PagedAttentionImpl
from op_sets import make_op_set


def config(dtype: torch.dtype = torch.bfloat16, *, eager: bool = False, device: str = "cpu") -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(dtype=dtype, enforce_eager=eager),
        device_config=SimpleNamespace(device=torch.device(device)),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def kernels(folder: Path) -> CpuKernels:
    return CpuKernels(folder / "kernels")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (config(), "compiled kernels: bfloat16 on a CPU with a C compiler"),
        (config(eager=True), "torch: --enforce-eager"),
        (config(torch.float32), "torch: the kernels are for bfloat16, .* in torch.float32"),
        (config(device="meta"), "torch: the kernels are for a CPU"),
    ],
)
def test_the_choice_is_logged_with_its_reason(
    given: Any, reason: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hookserve"):
        chosen = choose_kernels(given, str(folder))
    assert (chosen is not None) == reason.startswith("compiled")
    (line,) = caplog.messages
    assert re.fullmatch(f"layers compute with {reason}", line)


def test_what_plugins_say_is_in_the_librarys_name(folder: Path) -> None:
    kept = folder / "kernels"
    before = set(kept.glob("*.so"))
    assert choose_kernels(config(), str(folder), lambda: ["plugin=2"]) is not None
    assert len(set(kept.glob("*.so")) - before) == 1

    def never() -> list[str]:
        raise AssertionError("nothing is compiled")

    assert choose_kernels(config(eager=True), str(folder), never) is None


def test_without_a_compiler_torch_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO, "hookserve"):
        assert choose_kernels(config(), str(tmp_path)) is None
    assert "layers compute with torch: there is no C compiler on PATH" in caplog.text


@pytest.mark.parametrize("name", ["silu_and_mul", "rotate", "attend_decode", "multiply"])
def test_a_kernel_with_other_values_is_not_used(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "multiply" and not CpuKernels(folder / "kernels").can_multiply:
        return  # it is not asked
    right = getattr(CpuKernels, name)
    monkeypatch.setattr(CpuKernels, name, lambda *args: right(*args) * 1.1)
    with caplog.at_level(logging.INFO, "hookserve"):
        assert choose_kernels(config(), str(folder)) is None
    assert f"the compiled {name} gave other values than torch" in caplog.text


def test_a_prompts_kernel_with_other_values_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = CpuKernels.attend_prefill

    def wrong(kernels: CpuKernels, *args: Any) -> None:
        right(kernels, *args)
        args[4].mul_(1.1)

    monkeypatch.setattr(CpuKernels, "attend_prefill", wrong)
    with caplog.at_level(logging.INFO, "hookserve"):
        assert choose_kernels(config(), str(folder)) is None
    assert "the compiled attend_prefill gave other values than torch" in caplog.text


class Doubled(RMSNorm):
    def _scale(self, normalised: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return super()._scale(normalised, dtype) * 2


def test_what_a_subclass_changes_no_kernel_passes_over(kernels: CpuKernels) -> None:
    x = torch.randn(3, 32).to(torch.bfloat16)
    with set_model_context(
        static_forward_context={},
        dtype=torch.bfloat16,
        block_size=16,
        kernels=kernels,
        ops=make_op_set(dtype=torch.bfloat16),
    ):
        norm, doubled = RMSNorm(32, dtype=x.dtype), Doubled(32, dtype=x.dtype)
        gemma = GemmaRMSNorm(32, dtype=x.dtype)
    calls = []
    plain = kernels.rms_norm
    kernels.rms_norm = lambda *args: calls.append(1) or plain(*args)  # type: ignore[assignment]
    try:
        assert torch.equal(doubled(x), norm(x) * 2)
        gemma(x)
    finally:
        del kernels.rms_norm
    assert len(calls) == 1


def test_layers_outside_of_a_model_use_torch() -> None:
    assert SiluAndMul()._method == RMSNorm(32)._method == "forward_native"


def test_a_layer_that_no_kernel_takes_is_refused_by_name(kernels: CpuKernels) -> None:
    with (
        set_model_context(
            static_forward_context={}, dtype=torch.bfloat16, block_size=16, kernels=kernels
        ),
        pytest.raises(ValueError, match="'compiled' does not support head size 80"),
    ):
        Attention(2, 80, 1.0, attn_backend=CompiledAttentionBackend, prefix="a")
    with (
        set_model_context(static_forward_context={}, dtype=torch.bfloat16, block_size=16),
        pytest.raises(ValueError, match="a start without compiled kernels"),
    ):
        Attention(2, 64, 1.0, attn_backend=CompiledAttentionBackend, prefix="a")


def test_each_layer_takes_the_first_backend_that_can_do_what_it_asks(kernels: CpuKernels) -> None:
    backends = [CompiledAttentionBackend, PagedAttentionBackend]
    with set_model_context(
        static_forward_context={},
        dtype=torch.bfloat16,
        block_size=16,
        attention_backends=backends,
        kernels=kernels,
    ):
        layers = [Attention(2, size, 1.0, prefix=str(size)) for size in (64, 80)]
    assert [layer.attn_backend for layer in layers] == backends
    assert [type(layer.impl) for layer in layers] == [CompiledAttentionImpl, PagedAttentionImpl]


def test_no_copies_are_kept_where_the_cache_is_read_in_place(kernels: CpuKernels) -> None:
    with set_model_context(
        static_forward_context={}, dtype=torch.bfloat16, block_size=16, kernels=kernels
    ):
        layer = Attention(2, 64, 1.0, attn_backend=CompiledAttentionBackend, prefix="a")
    layer.bind_kv_cache(torch.zeros(layer.kv_cache_shape(4, 16), dtype=torch.bfloat16))
    assert isinstance(layer.impl, CompiledAttentionImpl)
    assert [len(rows) for rows in layer.impl._kept_rows] == [0, 0]
