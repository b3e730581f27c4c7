"""The script for a GPU, where there is none: in the interpreter, with small shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hookserve.ops.op_references import REFERENCES

BY_OTHERS = {"embedding", "linear", "logits", "sampling"}
"""Ops that no Triton kernel computes."""


def test_it_compares_every_kernel_and_a_model(source_root: Path, tmp_path: Path) -> None:
    script, out = source_root / "tests" / "gpu" / "run.py", tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, str(script), "--device=cpu", "--interpret", "--small", f"--json={out}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads(out.read_text())["lines"]
    checks = {line["check"]: line["holds"] for line in lines if "check" in line}
    assert all(checks.values()) and "FAIL" not in done.stdout
    for dtype in ("float32", "float16", "bfloat16"):
        kernels = {name.split()[0] for name in checks if name.endswith(dtype)}
        assert {name.partition("+")[0].partition("-")[0] for name in kernels} == (
            REFERENCES.keys() - BY_OTHERS
        )
    assert checks["model: what computes"]
    assert checks["model, float32: the tokens of Triton and of torch"]
    rates = [line for line in lines if "rate" in line]
    assert len(rates) > len(REFERENCES) and all(line["seconds"] > 0 for line in rates)
