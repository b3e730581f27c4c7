"""What the interpreter does not see: that Triton's compiler takes every kernel."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from triton_interpreter import without_interpreter

FAST_MEMORY = 99 << 10
"""Bytes that a program may take of cards of capability 8.6 and 8.9; others have more."""
ATTENTION = ("_attend_part", "_join_parts", "_attend_rows")


def kernels_of(folder: Path) -> set[str]:
    """The names of the functions in it that are launched: the others have names without a ``_``."""
    return {
        node.name
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("_")
        and any(ast.unparse(each).startswith("triton.jit") for each in node.decorator_list)
    }


def test_every_kernel_compiles_for_a_gpu(source_root: Path, tmp_path: Path) -> None:
    script = source_root / "tests" / "support" / "compile_kernels.py"
    done = subprocess.run(
        [sys.executable, str(script), "80", "64", "bfloat16"],
        env=without_interpreter(
            TRITON_CACHE_DIR=str(tmp_path), OMP_NUM_THREADS="1", PYTHONPATH=str(script.parent)
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    launches = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in launches} == kernels_of(source_root / "ops" / "triton")
    for name, code, memory, _ in launches:
        assert int(code) > 0 and int(memory) <= FAST_MEMORY, name
    for kernel in ATTENTION:  # once for each of two kinds of layer, whatever the steps are
        assert len({told for name, _, _, told in launches if name == kernel}) == 2, kernel
