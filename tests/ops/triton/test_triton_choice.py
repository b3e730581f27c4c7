"""When the provider ``triton`` is what computes an op, and which tensors it takes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.hookspecs import PluginError
from hookserve.ops.activation import GeluAndMul, SiluAndMul
from hookserve.ops.context import set_model_context
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm
from hookserve.ops.rotary_embedding import get_rope
from hookserve.ops.triton.norms import MAX_WIDTH
from kernel_inputs import by_column, check_close, draw
from op_sets import make_op_set
from triton_interpreter import without_interpreter

OPS = (
    "rms_norm",
    "gemma_rms_norm",
    "silu_and_mul",
    "gelu_and_mul",
    "rotary_embedding",
    "partial_rotary_embedding",
)
NAMED = {op: ["triton"] for op in OPS}
CUDA = torch.device("cuda")


def building(ops: OpSet, dtype: torch.dtype = torch.float32) -> AbstractContextManager[Any]:
    return set_model_context(static_forward_context={}, dtype=dtype, block_size=4, ops=ops)


def layers() -> list[Any]:
    half = {"partial_rotary_factor": 0.5}
    return [
        RMSNorm(24),
        GemmaRMSNorm(24),
        SiluAndMul(),
        GeluAndMul("tanh"),
        get_rope(8, 64),
        get_rope(8, 64, rope_parameters=half),
    ]


def implementations(ops: OpSet) -> dict[str, tuple[str, str]]:
    return {row.op: (row.implementation, row.owner) for row in ops.rows()}


OURS = ("triton", "hookserve:builtin:op_providers")


def test_where_it_is_named_the_layers_compute_by_it() -> None:
    ops = make_op_set(preferred=NAMED)
    with building(ops):
        norm, gemma, silu, gelu, whole, partial = layers()
    assert implementations(ops) == dict.fromkeys(OPS, OURS)
    x, residual = draw(3, 24), draw(3, 24, seed=1)
    norm.weight.data = gemma.weight.data = draw(24, seed=2)
    for op, arguments in (
        (norm, (x,)),
        (norm, (x, residual)),
        (gemma, (x, residual)),
        (silu, (x,)),
        (gelu, (x,)),
        (whole, (torch.arange(3), x, residual)),
        (partial, (torch.arange(3), x, residual)),
    ):
        assert op._method == "forward_provided"
        got, expected = op(*arguments), op.forward_native(*arguments)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for one, other in pairs:
            check_close(one, other)


def test_a_gpu_takes_it_by_itself_and_a_cpu_does_not() -> None:
    ops = make_op_set(device=CUDA, dtype=torch.bfloat16)
    with building(ops):
        layers()
    assert implementations(ops) == dict.fromkeys(OPS, OURS)
    ops = make_op_set()
    with building(ops):
        layers()
    assert implementations(ops) == dict.fromkeys(OPS, ("torch", "hookserve"))
    (row,) = [row for row in ops.rows() if row.op == "gelu_and_mul"]
    assert row.reason.endswith("Triton is for GPUs, and its interpreter for those who name it")


@pytest.mark.parametrize(
    ("device", "dtype", "why"),
    [
        (CUDA, torch.float64, "the kernels do not compute in torch.float64"),
        (torch.device("xpu"), torch.float32, "the kernels are for CUDA devices, not xpu"),
    ],
)
def test_what_no_kernel_is_made_for_is_refused_where_it_is_named(
    device: torch.device, dtype: torch.dtype, why: str
) -> None:
    with (
        building(make_op_set(device=device, dtype=dtype, preferred=NAMED)),
        pytest.raises(PluginError, match=f"no provider of rms_norm works .*{why}"),
    ):
        RMSNorm(4)


COMPILING = """
import sys

from hookserve.hookspecs import PluginError
from hookserve.ops.context import set_model_context
from hookserve.ops.layernorm import RMSNorm
from op_sets import make_op_set

def build(**options):
    ops = make_op_set(**options)
    with set_model_context(static_forward_context={}, dtype=None, block_size=4, ops=ops):
        RMSNorm(4)

build()
assert "triton" not in sys.modules
try:
    build(preferred={"rms_norm": ["triton"]})
except PluginError as error:
    print(error)
"""


def test_without_the_interpreter_a_cpu_start_names_what_lacks_and_imports_nothing(
    source_root: Path, tmp_path: Path
) -> None:
    """Only the start that names Triton imports it, and fails at once."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILING],
        env=without_interpreter(PYTHONPATH=str(source_root / "tests" / "support")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "no provider of rms_norm works that was asked for" in done.stdout
    assert "on a CPU it needs its interpreter (TRITON_INTERPRET=1)" in done.stdout
    assert done.stdout.count("\n") == 1


def test_tensors_that_no_kernel_takes_are_torchs() -> None:
    ops = make_op_set(preferred=NAMED)
    with building(ops):
        norm, _, silu, _, rope, _ = layers()
        wide = RMSNorm(MAX_WIDTH + 1)
    x, half = draw(3, 24), draw(3, 24).half()
    cos, sin = draw(3, 1, 8), draw(3, 1, 8, seed=1)
    provided = norm._provided
    for arguments in (
        (x.double(), None, norm.weight, 1e-6),
        (x, half, norm.weight, 1e-6),
        (x, x[:1], norm.weight, 1e-6),
        (x, None, norm.weight.half(), 1e-6),
        (x, None, norm.weight[:4], 1e-6),
        (x, None, draw(48)[::2], 1e-6),
        (x, None, norm.weight.to("meta"), 1e-6),
        (draw(1, MAX_WIDTH + 1), None, wide.weight, 1e-6),
    ):
        assert provided(*arguments) is NotImplemented
    assert silu._provided(draw(2, 5)) is NotImplemented
    assert silu._provided(x.double()) is NotImplemented
    for arguments in (
        (by_column(x), cos, sin, 8),
        (x, cos[:1], sin[:1], 8),
        (x, cos, sin[..., :4], 8),
        (x, draw(3, 1, 9), draw(3, 1, 9), 9),
        (x, draw(3, 1, 16)[..., ::2], sin, 8),
        (x, cos.half(), sin.half(), 8),
        (x, cos, sin, 7),
        (x, cos, sin, 6),
        (draw(3, 3, 8), cos, sin, 8),
    ):
        assert rope._provided(*arguments) is NotImplemented
    assert torch.equal(norm(x.half()), norm.forward_native(x.half()))
