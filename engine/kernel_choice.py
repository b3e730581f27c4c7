"""Whether a worker's layers use compiled kernels, and why; the choice is logged with its reason.

The kernels are ``hookserve.ops.cpu_kernels``'. A kernel that gives other values than torch's
functions do is not used; where a layer's own methods were replaced, none is, which ``ops.dispatch``
and ``model_parts`` see to.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from hookserve.ops.c_compiler import CompileError
from hookserve.ops.context import AttentionMetadata
from hookserve.ops.cpu_kernels import CpuKernels

from .environment import default_cache_dir
from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)

_Draw = Callable[..., torch.Tensor]
"""Random numbers of a shape."""


def choose_kernels(
    vllm_config: VllmConfig,
    cache_dir: str | None,
    ask_keys: Callable[[], Sequence[str]] = tuple,
) -> CpuKernels | None:
    """The kernels for the model, or ``None``: torch's own functions.

    Args:
        cache_dir: the server's; libraries are in its folder ``kernels``.
        ask_keys: what plugins add to the library's name; called if there is to be a library.
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
    if sys.platform != "linux":
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
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    if not _norms(kernels, draw):
        return "rms_norm"
    gated = draw(3, 64)
    gate, up = gated.chunk(2, dim=-1)
    if not _are_close(kernels.silu_and_mul(gated), F.silu(gate) * up):
        return "silu_and_mul"
    if not _rotates(kernels, draw):
        return "rotate"
    if kernels.can_multiply and not _multiplies(kernels, draw):
        return "multiply"
    return _wrong_attention(kernels, draw)


def _norms(kernels: CpuKernels, draw: _Draw) -> bool:
    x, residual, weight, epsilon = draw(3, 48), draw(3, 48), draw(48), 1e-6
    total = x + residual
    expected = F.rms_norm(total.float(), (48,), None, epsilon) * weight
    got, got_total = kernels.rms_norm(x, residual, weight, epsilon)
    return got_total is not None and _are_close(got, expected) and torch.equal(got_total, total)


def _rotates(kernels: CpuKernels, draw: _Draw) -> bool:
    x, angles = draw(3, 2 * 64), torch.arange(3 * 64).view(3, 1, 64) / 7
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    heads = x.view(3, 2, 64)
    expected = heads * cosines + heads.roll(32, -1) * sines
    return _are_close(kernels.rotate(x, cosines, sines, 64).view_as(heads), expected)


def _multiplies(kernels: CpuKernels, draw: _Draw) -> bool:
    x, weight, bias = draw(7, 32), draw(192, 32), draw(192)
    panels = weight.view(3, 64, 16, 2).transpose(1, 2).contiguous()
    got = kernels.multiply(x, panels.data_ptr(), 192, bias)
    return _are_close(got, F.linear(x.float(), weight.float(), bias.float()))


def _wrong_attention(kernels: CpuKernels, draw: _Draw) -> str | None:
    """Also whether the keys and values that it reads were written where the slots say."""
    key, value, query = draw(20, 2, 32), draw(20, 2, 32), draw(20, 2, 3, 32)
    cache = torch.zeros(3, 2, 2, 16, 32, dtype=torch.bfloat16)
    kernels.write_cache(cache, key, value, torch.arange(16, 36))
    tables = torch.tensor([[1, 2]])
    scores = torch.einsum("nhgs,lhs->hgnl", query.float(), key.float()) * 0.125
    weights = torch.softmax(scores + torch.full((20, 20), -torch.inf).triu(1), dim=-1)
    expected = torch.einsum("hgnl,lhs->nhgs", weights, value.float())
    last = AttentionMetadata(1, 1, 1, [0, 1], [20], tables, torch.tensor([35]), 16)
    if not _are_close(kernels.attend_decode(query[19:], cache, last, 0.125), expected[19:]):
        return "attend_decode"
    whole = AttentionMetadata(1, 20, 0, [0, 20], [20], tables, torch.arange(16, 36), 16)
    got = torch.empty_like(query)
    kernels.attend_prefill(query, cache, whole, 0, got, 0.125)
    return None if _are_close(got, expected) else "attend_prefill"


def _are_close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got.float(), expected.float(), rtol=2e-2, atol=2e-2)
