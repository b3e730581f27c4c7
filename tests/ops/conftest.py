"""What tests of layers share."""

from __future__ import annotations

import pytest

from hookserve.ops.cpu_kernels import CpuKernels


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> CpuKernels:
    """Compiled once: that is what takes time."""
    return CpuKernels(tmp_path_factory.mktemp("kernels"))
