"""``compile_kernels.py CAPABILITY HEAD_SIZE DTYPE``: compile every Triton kernel for cards of this
capability, as it is launched for a model, and print a line for each launch: the kernel, the bytes
of its machine code, the bytes of fast memory that a program of it takes, and what tells its code
from others."""

from __future__ import annotations

import sys

import torch

from hookserve.ops.triton.activations import gelu_and_mul, silu_and_mul
from hookserve.ops.triton.cache_writes import write_cache
from hookserve.ops.triton.norms import rms_norm
from hookserve.ops.triton.paged_attention_decode import attend_decode
from hookserve.ops.triton.paged_attention_prefill import attend_prefill
from hookserve.ops.triton.rotations import rotate
from triton_compiler import compile_only

HEADS, KV_HEADS, BLOCK = 6, 2, 16


def launch_all(size: int, dtype: torch.dtype) -> None:
    """Every kernel, for heads of this size."""
    wide = torch.zeros(4, HEADS * size, dtype=dtype)
    rms_norm(wide, None, wide[0], 1e-5)
    rms_norm(wide, wide, wide[0], 1e-5, is_gemma=True)
    silu_and_mul(wide)
    for approximate in ("none", "tanh"):
        gelu_and_mul(wide, approximate)
    for turning in (size, size // 2):
        cos = torch.zeros(4, 1, turning, dtype=dtype)
        rotate(wide, cos, cos, size)
    cache = torch.zeros(8, 2, KV_HEADS, BLOCK, size, dtype=dtype)
    query = wide.view(4, HEADS, size)
    write_cache(cache, query[:, :KV_HEADS], query[:, :KV_HEADS], torch.arange(4))
    lengths = torch.tensor([3200, 1, 5, 16], dtype=torch.int32)
    starts = torch.arange(5, dtype=torch.int32)
    for window, cap in ((None, None), (40, 20.0)):
        how = {"window": window, "soft_cap": cap}
        # Steps of other lengths, in which other sequences decode.
        for width, first in ((200, 0), (208, 1), (1, 3)):
            tables = torch.zeros(4, width, dtype=torch.int64)
            given, output = (query[first:], cache, tables[first:]), torch.empty_like(query[first:])
            longest = 256 * (16 + first)
            attend_decode(*given, lengths[first:], output, 0.1, longest=longest, **how)
            attend_prefill(*given, starts[first:], lengths[first:], output, 0.1, most=40, **how)


if __name__ == "__main__":
    done = compile_only(int(sys.argv[1]))
    launch_all(int(sys.argv[2]), getattr(torch, sys.argv[3]))
    for line in done.launches:
        print(*line)
