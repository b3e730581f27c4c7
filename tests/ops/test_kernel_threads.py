"""Whatever number of threads shares a kernel's work, the numbers are the same: also where it cannot
be shared evenly, and where there are more threads than parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hookserve.ops.context import AttentionMetadata
from hookserve.ops.cpu_kernels import CpuKernels

BF16 = torch.bfloat16
ROWS, HEADS, GROUP, SIZE, BLOCK = 45, 3, 3, 128, 16
"""So large that kernels take several threads."""


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def norm(kernels: CpuKernels) -> Any:
    normalised, total = kernels.rms_norm(draw(ROWS, 576), draw(ROWS, 576, seed=1), draw(576), 1e-5)
    assert total is not None
    return torch.stack((normalised, total))


def gated(kernels: CpuKernels) -> Any:
    return kernels.silu_and_mul(draw(ROWS, 1536))


def rotated(kernels: CpuKernels) -> Any:
    cos, sin = draw(ROWS, 1, SIZE), draw(ROWS, 1, SIZE, seed=1)
    return kernels.rotate(draw(ROWS, HEADS * SIZE), cos, sin, SIZE)


def written(kernels: CpuKernels) -> Any:
    cache = torch.zeros(5, 2, HEADS, BLOCK, SIZE, dtype=BF16)
    slots = torch.randperm(5 * BLOCK, generator=torch.Generator().manual_seed(0))[:ROWS]
    kernels.write_cache(cache, draw(ROWS, HEADS, SIZE), draw(ROWS, HEADS, SIZE, seed=1), slots)
    return cache


def step(lengths: list[int], news: list[int]) -> AttentionMetadata:
    tables = torch.arange(len(lengths) * 50).view(len(lengths), 50)
    starts = torch.tensor([0, *news]).cumsum(0).tolist()
    slots = torch.zeros(sum(news), dtype=torch.int64)
    decodes = news.count(1)
    return AttentionMetadata(len(news), sum(news), decodes, starts, lengths, tables, slots, BLOCK)


def decoded(kernels: CpuKernels) -> Any:
    cache = draw(150, 2, HEADS, BLOCK, SIZE)
    query = draw(3, HEADS, GROUP, SIZE)
    return kernels.attend_decode(query, cache, step([700, 3, 256], [1, 1, 1]), 0.1)


def attended(kernels: CpuKernels) -> Any:
    cache, query = draw(50, 2, HEADS, BLOCK, SIZE), draw(ROWS, HEADS, GROUP, SIZE)
    output = torch.empty_like(query)
    kernels.attend_prefill(query, cache, step([300], [ROWS]), 0, output, 0.1)
    return output


def multiplied(kernels: CpuKernels) -> Any:
    if not kernels.can_multiply:
        return torch.zeros(0)  # there is nothing that could be wrong
    # Five panels of columns: two threads have two and a half each.
    panels = draw(5, 35, 64, 2)
    return kernels.multiply(draw(ROWS, 70), panels.data_ptr(), 320, draw(320))


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("compute", [norm, gated, rotated, written, decoded, attended, multiplied])
def test_threads_change_nothing(
    compute: Callable[[CpuKernels], Any], kernels: CpuKernels, set_threads: Callable[[int], None]
) -> None:
    set_threads(1)
    alone = compute(kernels)
    for count in (2, 3, 16):
        set_threads(count)
        assert torch.equal(compute(kernels), alone), f"{count} threads"
