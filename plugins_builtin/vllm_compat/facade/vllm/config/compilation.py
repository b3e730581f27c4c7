"""What is said of ops and compilation."""

from __future__ import annotations

import enum

from hookserve.engine.vllm_config import (
    CompilationConfig,
    CompilationMode,
    CUDAGraphMode,
    PassConfig,
)

__all__ = [
    "CUDAGraphMode",
    "CompilationConfig",
    "CompilationLevel",
    "CompilationMode",
    "PassConfig",
]

__surface__ = {
    "CUDAGraphMode": "shape: values of CompilationConfig.cudagraph_mode; nothing is captured",
    "CompilationConfig": "live: ops and attention layers are found through it; nothing is "
    "traced, so mode and what belongs to it is read by plugins alone",
    "CompilationLevel": "shape: the older name of CompilationMode, with its older names",
    "PassConfig": "shape: CompilationConfig.pass_config, for plugins to read; nothing is compiled",
    "CompilationMode": "shape: values of CompilationConfig.mode; a model is run as it is written",
}


class CompilationLevel(enum.IntEnum):
    """The older names of ``CompilationMode``; the numbers are the same."""

    NO_COMPILATION = 0
    DYNAMO_AS_IS = 1
    DYNAMO_ONCE = 2
    PIECEWISE = 3
