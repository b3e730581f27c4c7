"""Weights packed once for oneDNN, and the check whether that works on this machine.

A packed weight is an opaque tensor that keeps its shape; ``to_dense()`` gives the plain one back.
Which layers are packed is decided by ``linear`` and ``vocab_parallel_embedding``.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

_BATCH_HINT = 32
# The layout that oneDNN picks for 32 rows is within noise of the best one for every row count
# that was measured in bfloat16 (1 to 1024).


@functools.cache
def can_pack(dtype: torch.dtype) -> tuple[bool, str]:
    """Whether linear weights of this dtype can be packed on this machine's CPU, and why."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False, "this torch was built without oneDNN"
    if dtype is torch.float32:
        # Measured on a real model: its logits were 0.009 from a float64 run, 0.0008 unpacked.
        return False, "in float32 the plain product is the more exact one"
    if dtype is not torch.bfloat16:
        return False, f"{dtype} weights are not packed"
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False, "the CPU has no bfloat16 instructions"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 40, generator=generator).to(dtype)
    x = torch.randn(3, 40, generator=generator).to(dtype)
    try:
        got = packed_linear(x, pack(weight), None)
    except (AttributeError, RuntimeError) as error:
        return False, f"oneDNN refused a packed weight: {error}"
    if not torch.allclose(got.float(), F.linear(x, weight).float(), rtol=2e-2, atol=2e-2):
        return False, "a packed weight gave other values than the plain one"
    return True, "oneDNN packs weights of this dtype"


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Pack ``weight: [out, in]`` for ``packed_linear``; the result is a copy."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _BATCH_HINT)
    return packed


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x: [..., in]`` times ``packed: [out, in]`` transposed, plus ``bias: [out]``."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result
