"""Triton's compiler on a machine without a GPU: everything up to the machine code of a card, which
is then neither loaded nor run. For a process of its own, which must not interpret kernels."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget


class NoDevice:
    """In the place of Triton's driver."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """What launches have come to.

    Attributes:
        launches: of each the kernel's name, the bytes of its machine code, the bytes of fast
            memory (shared memory) that a program takes, and what tells its code from others.
    """

    def __init__(self) -> None:
        self.launches: list[tuple[str, int, int, str]] = []


def compile_only(capability: int) -> Compiled:
    """From now on a launch compiles for cards of this capability (80: A100, 90: H100), with all
    that Triton reads out of its arguments, and does nothing else; tensors may be a CPU's."""
    done, launch = Compiled(), triton.runtime.jit.JITFunction.run
    triton.runtime.driver.set_active(NoDevice(capability))

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = launch(kernel, *args, grid=grid, warmup=True, **options)
        code, memory = len(made.asm["cubin"]), made.metadata.shared
        done.launches.append((kernel.__name__, code, memory, made.hash))
        return made

    triton.runtime.jit.JITFunction.run = run
    return done
