"""Whether Triton's kernels run on a device, and if not, why not.

The only place that asks: what is then chosen is the provider's and the attention backend's.
"""

from __future__ import annotations

import importlib.util

import torch

from hookserve.ops.context import get_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What every kernel computes in."""


def why_not(device: torch.device) -> str | None:
    """Why no kernel runs on the device; ``None``: kernels run.

    On a CPU they run in Triton's interpreter alone, thousands of times slower than they should:
    that is for tests, and for debuggers.
    """
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install 'hookserve[gpu]')"
    if device.type == "cpu":
        import triton

        if not triton.knobs.runtime.interpret:
            return (
                "Triton compiles for GPUs; on a CPU it needs its interpreter (TRITON_INTERPRET=1)"
            )
        return None
    return None if device.type == "cuda" else f"the kernels are for CUDA devices, not {device.type}"


def is_named(op: str) -> bool:
    """Whether the operator names the provider ``triton`` for the op of the model that is being
    built; where nobody does, a CPU start does not so much as import Triton."""
    ops = get_ops()
    return ops is not None and "triton" in ops.preferred.get(op, ())
