"""Built-in plugin: CUDA devices as a platform, where there are any. ``--platform cuda`` takes it:
without a name the CPU is used."""

from __future__ import annotations

from hookserve.hookspecs import hookimpl

from .cuda_platform import CudaPlatform


@hookimpl
def platform() -> str | None:
    available, _ = CudaPlatform.is_available()
    return "hookserve.plugins_builtin.cuda_platform:CudaPlatform" if available else None
