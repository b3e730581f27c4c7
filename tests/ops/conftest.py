"""What tests of layers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookserve.engine.environment import default_cache_dir
from hookserve.ops.cpu_kernels import CpuKernels


@pytest.fixture(scope="session")
def kernels() -> CpuKernels:
    """From where servers keep theirs: to compile them takes more time than all tests of them."""
    return CpuKernels(Path(default_cache_dir()) / "kernels")
