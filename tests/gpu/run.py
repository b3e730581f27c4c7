#!/usr/bin/env python3
"""Check every Triton kernel, and a whole model, against torch on a GPU, and say how fast they are.

    python tests/gpu/run.py [--device cuda] [--json FILE]
    python tests/gpu/run.py --device cpu --interpret --small      what CI can run, without a GPU

Kernels are compared with their definitions (``ops/op_references.py``) in float32, bfloat16 and
float16; a Llama of random weights generates by the engine's own core, once by Triton and once by
torch. Rates stand beside what the device reaches in the same run: bytes beside a copy's, operations
beside a large product's. It needs torch, Triton, msgspec, numpy and pluggy, and this folder's
checkout; nothing is installed and nothing is fetched. It ends with 1 if anything is not as it
should be.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
TOLERANCES = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Of a kernel, relative to the largest number of what is expected."""


@dataclass
class Sizes:
    """Shapes of the run."""

    rows: int = 16384
    hidden: int = 4096
    inner: int = 8192
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    block_size: int = 16
    decodes: int = 64
    context: int = 4096
    prompts: int = 4
    prompt: int = 2048
    copied: int = 1 << 30
    product: int = 8192
    batches: tuple[int, ...] = (1, 8, 64)
    generated: int = 32
    model: dict[str, int] = field(
        default_factory=lambda: {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
        }
    )


SMALL = Sizes(
    rows=3,
    hidden=48,
    inner=24,
    heads=4,
    kv_heads=2,
    head_size=16,
    decodes=2,
    context=21,
    prompts=2,
    prompt=5,
    copied=1 << 16,
    product=64,
    batches=(2,),
    generated=2,
    model={
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 96,
    },
)


class Report:
    """What is printed, kept for ``--json``, and what failed.

    Attributes:
        bandwidth: bytes a second of a copy, reading and writing.
        peak: operations a second of a product in bfloat16.
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.bandwidth = self.peak = 0.0

    def check(self, name: str, holds: bool, said: str) -> None:
        self.lines.append({"check": name, "holds": holds, "said": said})
        if not holds:
            self.failed.append(name)
        print(f"{'ok  ' if holds else 'FAIL'} {name:44} {said}", flush=True)

    def rate(self, name: str, seconds: float, num_bytes: float = 0, operations: float = 0) -> None:
        line: dict[str, Any] = {"rate": name, "seconds": seconds}
        said = f"{seconds * 1e6:10.1f} us"
        if num_bytes:
            part = num_bytes / seconds / self.bandwidth
            line |= {"bytes_per_s": num_bytes / seconds, "part_of_copy": part}
            said += f" {num_bytes / seconds / 1e9:8.1f} GB/s, {part:6.1%} of a copy's"
        if operations:
            part = operations / seconds / self.peak
            line |= {"operations_per_s": operations / seconds, "part_of_product": part}
            said += f" {operations / seconds / 1e12:7.2f} TFLOP/s, {part:6.1%} of a product's"
        self.lines.append(line)
        print(f"     {name:44} {said}", flush=True)


class Bench:
    """The device, its clock, and numbers on it."""

    def __init__(self, device: str, sizes: Sizes) -> None:
        import torch

        self.device = torch.device(device)
        self.sizes = sizes
        self.is_gpu = self.device.type == "cuda"
        self.generator = torch.Generator(self.device).manual_seed(0)

    def draw(self, *shape: int, dtype: Any = None) -> Any:
        import torch

        made = torch.randn(*shape, generator=self.generator, device=self.device)
        return made.to(dtype or torch.float32)

    def seconds(self, call: Callable[[], Any]) -> float:
        """Of one call: the least of several rounds, so that others on the machine count less."""
        import torch

        rounds, calls = (5, 20) if self.is_gpu else (1, 1)
        for _ in range(3 if self.is_gpu else 0):
            call()
        times = []
        for _ in range(rounds):
            if not self.is_gpu:
                started = time.perf_counter()
                call()
                times.append(time.perf_counter() - started)
                continue
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            start.record()
            for _ in range(calls):
                call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1000 / calls)
        return min(times)

    def finish(self) -> None:
        """Wait for the device, and give back what is not used."""
        import torch

        gc.collect()
        if self.is_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def describe(self) -> str:
        import torch
        import triton

        name = torch.cuda.get_device_name(self.device) if self.is_gpu else platform.machine()
        return (
            f"{name}; Python {platform.python_version()}, torch {torch.__version__}, "
            f"Triton {triton.__version__}"
        )


def mount() -> None:
    """Make the checkout importable as ``hookserve``, in front of one that is installed; and the
    file beside this one."""
    package = types.ModuleType("hookserve")
    package.__path__ = [str(ROOT)]
    sys.modules["hookserve"] = package
    sys.path.insert(0, str(Path(__file__).resolve().parent))


def measure_limits(bench: Bench, report: Report) -> None:
    import torch

    source = torch.empty(bench.sizes.copied, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    took = bench.seconds(lambda: target.copy_(source))
    report.bandwidth = 2 * bench.sizes.copied / took
    size = bench.sizes.product
    one, other = (bench.draw(size, size, dtype=torch.bfloat16) for _ in "ab")
    took_product = bench.seconds(lambda: one @ other)
    report.peak = 2 * size**3 / took_product
    report.rate("limit: a copy", took, num_bytes=2 * bench.sizes.copied)
    report.rate("limit: a bfloat16 product", took_product, operations=2 * size**3)


# -- kernels ---------------------------------------------------------------------------------------


@dataclass
class Case:
    """One call of a kernel.

    Attributes:
        op: whose definition it is compared with.
        changes: the argument that the kernel fills, where it returns nothing.
    """

    op: str
    kernel: Callable[..., Any]
    arguments: tuple[Any, ...]
    num_bytes: float = 0
    operations: float = 0
    changes: int | None = None
    note: str = ""


def check_kernels(bench: Bench, report: Report) -> None:
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for make in (row_cases, cache_cases, attention_cases):
            for case in make(bench, dtype):
                compare(case, str(dtype).removeprefix("torch."), bench, report)
            bench.finish()


def compare(case: Case, dtype: str, bench: Bench, report: Report) -> None:
    """Check one call, and time it in the type that models have."""
    import torch

    from hookserve.ops.op_references import REFERENCES

    name = f"{case.op}{case.note} {dtype}"
    mine, theirs = (list(case.arguments) for _ in "ab")
    if case.changes is not None:
        theirs[case.changes] = theirs[case.changes].clone()
    got, expected = case.kernel(*mine), REFERENCES[case.op](*theirs)
    if case.changes is not None:
        got, expected = mine[case.changes], theirs[case.changes]
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    worst = 0.0
    for one, other in pairs:
        if other is None:
            continue
        largest = float(other.abs().max())
        error = float((one.double() - other.double()).abs().max()) / max(largest, 1e-30)
        worst = max(worst, error if torch.isfinite(one).all() else float("inf"))
    report.check(name, worst <= TOLERANCES[dtype], f"error {worst:.1e} of the largest number")
    if dtype == "bfloat16":
        took = bench.seconds(lambda: case.kernel(*case.arguments))
        report.rate(name, took, case.num_bytes, case.operations)


def row_cases(bench: Bench, dtype: Any) -> Iterator[Case]:
    """Norms, gated activations and rotations of a batch of tokens."""
    from hookserve.ops.triton.activations import gelu_and_mul, silu_and_mul
    from hookserve.ops.triton.norms import rms_norm
    from hookserve.ops.triton.rotations import rotate

    sizes, itemsize = bench.sizes, dtype.itemsize
    x, residual = (bench.draw(sizes.rows, sizes.hidden, dtype=dtype) for _ in "ab")
    weight = bench.draw(sizes.hidden, dtype=dtype)
    moved = sizes.rows * sizes.hidden * itemsize
    yield Case("rms_norm", rms_norm, (x, None, weight, 1e-5), 2 * moved)
    yield Case("rms_norm", rms_norm, (x, residual, weight, 1e-5), 4 * moved, note="+residual")

    def gemma(*arguments: Any) -> Any:
        return rms_norm(*arguments, is_gemma=True)

    yield Case("gemma_rms_norm", gemma, (x, residual, weight, 1e-5), 4 * moved)
    both = bench.draw(sizes.rows, 2 * sizes.inner, dtype=dtype)
    moved = 3 * sizes.rows * sizes.inner * itemsize
    yield Case("silu_and_mul", silu_and_mul, (both,), moved)
    for kind in ("none", "tanh"):
        yield Case("gelu_and_mul", gelu_and_mul, (both, kind), moved, note=f"-{kind}")
    heads, size = sizes.heads + sizes.kv_heads, sizes.head_size
    # Queries and keys are the first part of each row of a merged projection.
    merged = bench.draw(sizes.rows, (heads + sizes.kv_heads) * size, dtype=dtype)
    x = merged[:, : heads * size]
    for op, turning in (("rotary_embedding", size), ("partial_rotary_embedding", size // 2)):
        cos, half = (bench.draw(sizes.rows, 1, turning // 2, dtype=dtype) for _ in "ab")
        cos, sin = _joined(cos, cos), _joined(-half, half)
        yield Case(op, rotate, (x, cos, sin, size), 2 * x.numel() * itemsize)


def _joined(one: Any, other: Any) -> Any:
    import torch

    return torch.cat((one, other), dim=-1)


def make_cache(bench: Bench, num_blocks: int, dtype: Any) -> Any:
    sizes = bench.sizes
    return bench.draw(num_blocks, 2, sizes.kv_heads, sizes.block_size, sizes.head_size, dtype=dtype)


def cache_cases(bench: Bench, dtype: Any) -> Iterator[Case]:
    import torch

    from hookserve.ops.triton.cache_writes import write_cache

    sizes = bench.sizes
    num_blocks = -(-sizes.rows // sizes.block_size) + 1
    cache = make_cache(bench, num_blocks, dtype)
    shape = (sizes.rows, sizes.kv_heads, sizes.head_size)
    key, value = (bench.draw(*shape, dtype=dtype) for _ in "kv")
    places = num_blocks * sizes.block_size
    slots = torch.randperm(places, generator=bench.generator, device=bench.device)[: sizes.rows]
    moved = 4 * key.numel() * dtype.itemsize
    yield Case("kv_write", write_cache, (cache, key, value, slots), moved, changes=0)


def attention_cases(bench: Bench, dtype: Any) -> Iterator[Case]:
    """Decoding, and prompts of which half is in the cache already; plain, and with a window and
    capped scores."""
    import torch

    sizes = bench.sizes
    scale, device = sizes.head_size**-0.5, bench.device
    width = -(-sizes.context // sizes.block_size)
    count = max(sizes.decodes, sizes.prompts)
    cache = make_cache(bench, count * width + 1, dtype)
    order = torch.randperm(count * width, generator=bench.generator, device=device) + 1
    tables = order.view(count, width)
    # Lengths of every kind, the longest among them.
    steps = torch.arange(sizes.decodes, device=device)
    lengths = sizes.context - steps * sizes.context // (2 * sizes.decodes)
    query = bench.draw(sizes.decodes, sizes.heads, sizes.head_size, dtype=dtype)
    kv_bytes = 2 * sizes.kv_heads * sizes.head_size * dtype.itemsize
    seen = float(lengths.sum())
    many = tables[: sizes.decodes]
    ends = torch.arange(1, sizes.prompts + 1, device=device) * sizes.prompt
    starts = torch.cat((ends.new_zeros(1), ends))
    full = torch.full((sizes.prompts,), sizes.context, device=device)
    new = bench.draw(sizes.prompts * sizes.prompt, sizes.heads, sizes.head_size, dtype=dtype)
    pairs = sizes.prompts * sizes.prompt * (sizes.context - sizes.prompt / 2)
    operations = 4 * sizes.heads * sizes.head_size * pairs
    few = tables[: sizes.prompts]
    for window, cap, note in ((None, None, ""), (sizes.context // 3, 20.0, "+window+cap")):
        how = (scale, window, cap)
        yield Case(
            "paged_attention_decode",
            by_decode_kernel,
            (query, cache, many, lengths, *how),
            seen * kv_bytes if window is None else 0,
            note=note,
        )
        yield Case(
            "paged_attention_prefill",
            by_prefill_kernel,
            (new, cache, few, full, starts, *how),
            operations=operations if window is None else 0,
            note=note,
        )


def by_decode_kernel(
    query: Any, cache: Any, tables: Any, lengths: Any, scale: float, window: Any, cap: Any
) -> Any:
    import torch

    from hookserve.ops.triton.paged_attention_decode import attend_decode

    output = torch.empty_like(query)
    longest = tables.shape[1] * cache.shape[3]
    how = {"longest": longest, "window": window, "soft_cap": cap}
    attend_decode(query, cache, tables, lengths, output, scale, **how)
    return output


def by_prefill_kernel(
    query: Any,
    cache: Any,
    tables: Any,
    lengths: Any,
    starts: Any,
    scale: float,
    window: Any,
    cap: Any,
) -> Any:
    import torch

    from hookserve.ops.triton.paged_attention_prefill import attend_prefill

    output = torch.empty_like(query)
    most = query.shape[0] // len(lengths)
    how = {"most": most, "window": window, "soft_cap": cap}
    attend_prefill(query, cache, tables, starts, lengths, output, scale, **how)
    return output


def main() -> int:
    parser = argparse.ArgumentParser(description="Triton's kernels and a model, against torch.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--interpret", action="store_true", help="by Triton's interpreter")
    parser.add_argument("--small", action="store_true", help="shapes for an interpreter")
    parser.add_argument("--json", type=Path, help="where to write the lines too")
    given = parser.parse_args()
    if given.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
    mount()
    import torch
    from whole_model import check_model, time_model

    started = time.perf_counter()
    bench, report = Bench(given.device, SMALL if given.small else Sizes()), Report()
    described = bench.describe()
    print(described, flush=True)
    with torch.inference_mode():
        measure_limits(bench, report)
        check_kernels(bench, report)
        check_model(bench, report)
        time_model(bench, report)
    took = time.perf_counter() - started
    print(f"{len(report.failed)} failed of all checks; {took:.0f} s", flush=True)
    if given.json:
        content = {"on": described, "seconds": took, "lines": report.lines}
        given.json.write_text(json.dumps(content, indent=1))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
