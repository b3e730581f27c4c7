"""CUDA devices."""

from __future__ import annotations

from hookserve.plugins_builtin.cuda_platform import CudaPlatform

__all__ = ["CudaPlatform", "CudaPlatformBase", "NvmlCudaPlatform"]

__surface__ = {
    "CudaPlatform": "live: the built-in platform of --platform cuda; a subclass is a platform",
    "CudaPlatformBase": "live: the same class",
    "NvmlCudaPlatform": "live: the same class; memory is asked of the driver, not of NVML",
    "NonNvmlCudaPlatform": "refused: for boards without NVML; subclass CudaPlatform",
}

CudaPlatformBase = NvmlCudaPlatform = CudaPlatform
