"""Whether a worker's layers use compiled kernels, and why; the choice is logged with its reason.

The kernels are ``hookserve.ops.cpu_kernels``'. A kernel that gives other values than the layer that
it stands in for is not used.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from hookserve.ops.c_compiler import CompileError
from hookserve.ops.context import AttentionMetadata
from hookserve.ops.cpu_kernels import CpuKernels

from .environment import default_cache_dir
from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)


def choose_kernels(
    vllm_config: VllmConfig,
    cache_dir: str | None,
    ask_keys: Callable[[], Sequence[str]] = tuple,
) -> CpuKernels | None:
    """The kernels for the model, or ``None``: torch's own functions.

    Args:
        cache_dir: the server's; libraries are in its folder ``kernels``.
        ask_keys: what plugins add to the library's name; called if something is to be compiled.
    """
    kernels, reason = _choose(vllm_config, Path(cache_dir or default_cache_dir()), ask_keys)
    logger.info("layers compute with %s: %s", "compiled kernels" if kernels else "torch", reason)
    return kernels


def _choose(
    vllm_config: VllmConfig, cache_dir: Path, ask_keys: Callable[[], Sequence[str]]
) -> tuple[CpuKernels | None, str]:
    model = vllm_config.model_config
    if model.enforce_eager:
        return None, "--enforce-eager"
    if vllm_config.device_config.device.type != "cpu":
        return None, "the kernels are for a CPU"
    if model.dtype is not torch.bfloat16:
        return None, f"the kernels are for bfloat16, and the model computes in {model.dtype}"
    if os.name != "posix":
        return None, "the kernels are built on Linux alone"
    keys = ask_keys()
    try:
        kernels = CpuKernels(cache_dir / "kernels", keys)
    except CompileError as error:
        return None, str(error)
    wrong = find_wrong_kernel(kernels)
    if wrong is not None:
        return None, f"the compiled {wrong} gave other values than torch"
    return kernels, "bfloat16 on a CPU with a C compiler"


def find_wrong_kernel(kernels: CpuKernels) -> str | None:
    """The name of a kernel that does not give its twin's values on a small case, if there is
    one."""
    from hookserve.ops.activation import SiluAndMul
    from hookserve.ops.layernorm import RMSNorm

    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    norm, x, residual = RMSNorm(48, dtype=torch.bfloat16), draw(3, 48), draw(3, 48)
    expected, total = norm(x, residual)
    got, got_total = kernels.rms_norm(x, residual, norm.weight, norm.variance_epsilon)
    if got_total is None or not _are_close(got, expected) or not torch.equal(got_total, total):
        return "rms_norm"
    gated = draw(3, 64)
    if not _are_close(kernels.silu_and_mul(gated), SiluAndMul()(gated)):
        return "silu_and_mul"
    return None if _attends(kernels, draw) else "attend_decode"


def _attends(kernels: CpuKernels, draw: object) -> bool:
    assert callable(draw)
    key, value, query = draw(20, 2, 32), draw(20, 2, 32), draw(1, 2, 3, 32)
    cache = torch.zeros(3, 2, 2, 16, 32, dtype=torch.bfloat16)
    kernels.write_cache(cache, key, value, torch.arange(16, 36))
    metadata = AttentionMetadata(
        1, 1, 1, [0, 1], [20], torch.tensor([[1, 2]]), torch.tensor([35]), 16
    )
    scores = query[0].float() @ key.float().permute(1, 2, 0) * 0.125
    expected = torch.softmax(scores, dim=-1) @ value.float().transpose(0, 1)
    return _are_close(kernels.attend_decode(query, cache, metadata, 0.125)[0], expected)


def _are_close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got.float(), expected.float(), rtol=2e-2, atol=2e-2)
