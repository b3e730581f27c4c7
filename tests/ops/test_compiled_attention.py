"""The attention backend with the kernel beside the plain one: same cache, same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attention_steps import make_step
from hookserve.ops.attention import Attention
from hookserve.ops.compiled_attention import CompiledAttentionBackend
from hookserve.ops.context import (
    ForwardContext,
    set_forward_context,
    set_model_context,
)
from hookserve.ops.cpu_kernels import CpuKernels
from hookserve.ops.paged_attention import PagedAttentionBackend

BF16 = torch.bfloat16
HEADS, KV_HEADS, SIZE = 6, 2, 32


def make_layers(kernels: CpuKernels, block: int, **options: Any) -> list[Attention]:
    layers = []
    for backend in (PagedAttentionBackend, CompiledAttentionBackend):
        with set_model_context(
            static_forward_context={}, dtype=BF16, block_size=block, kernels=kernels
        ):
            layer = Attention(
                HEADS, SIZE, 0.2, KV_HEADS, prefix="a", attn_backend=backend, **options
            )
        layer.bind_kv_cache(torch.zeros(layer.kv_cache_shape(64, block), dtype=BF16))
        layers.append(layer)
    return layers


@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (7, None), (None, 2.0), (20, 2.0)])
def test_both_backends_give_the_same_over_chunks_and_decodes(
    kernels: CpuKernels, window: int | None, cap: float | None, block: int
) -> None:
    plain, compiled = make_layers(
        kernels, block, per_layer_sliding_window=window, logits_soft_cap=cap
    )
    generator = torch.Generator().manual_seed(1)
    plan = [
        [(0, 30), (0, 9), (0, 3)],
        [(30, 31), (9, 10), (3, 20)],
        [(31, 32), (10, 11), (20, 21)],
        [(32, 33), (11, 12), (21, 22)],
    ]
    for lengths in plan:
        merged = torch.randn(
            sum(end - start for start, end in lengths),
            (HEADS + 2 * KV_HEADS) * SIZE,
            generator=generator,
        ).to(BF16)
        parts = merged.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], dim=-1)
        results = []
        for layer in (plain, compiled):
            context = ForwardContext(make_step(lengths, block), {})
            with torch.inference_mode(), set_forward_context(context):
                results.append(layer(*parts))
        # The plain one rounds scores and weights to bfloat16, the kernel does not.
        torch.testing.assert_close(*results, rtol=3e-2, atol=2e-2)
        assert torch.equal(plain.kv_cache, compiled.kv_cache)
