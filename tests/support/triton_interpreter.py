"""Triton's interpreter, for the process of the tests and for the processes that tests start.

What Triton makes of a kernel is settled where its own library and the kernel are imported: by an
interpreter that computes on a CPU, or by the compiler.
"""

from __future__ import annotations

import os

SWITCH = {"TRITON_INTERPRET": "1"}
"""For the environment of a process."""


def without_interpreter(**more: str) -> dict[str, str]:
    """The environment of a process that compiles kernels."""
    return {name: value for name, value in os.environ.items() if name not in SWITCH} | more


def take_up() -> None:
    """Have this process interpret kernels from now on. To be called before anything imports Triton
    (transformers' models do); the environment, which children inherit, stays as it is."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ.update(SWITCH)
    import triton

    triton.knobs.runtime.__dict__["interpret"] = True
    if before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = before
