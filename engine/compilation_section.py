"""``CompilationConfig``: ops, attention layers and kernels of the model, as the tree of the
configuration holds them.

``mode`` and ``cudagraph_mode`` say what a model is run with, and a model is run as it is written:
nothing is traced or captured, and a plugin that sets them sets what other plugins read. The tree
is ``vllm_config``'s.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .config import EngineConfig


class CompilationMode(enum.IntEnum):
    """How a model would be compiled; names and numbers are the ecosystem's (vLLM's)."""

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


class CUDAGraphMode(enum.Enum):
    """What would be captured, of batches that decode and of others; names and values are the
    ecosystem's (vLLM's)."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (2, 0)
    FULL_AND_PIECEWISE = (2, 1)

    def decode_mode(self) -> CUDAGraphMode:
        return CUDAGraphMode(self.value[0]) if isinstance(self.value, tuple) else self

    def mixed_mode(self) -> CUDAGraphMode:
        return CUDAGraphMode(self.value[1]) if isinstance(self.value, tuple) else self

    def separate_routine(self) -> bool:
        """Whether the two kinds of batches are treated apart."""
        return isinstance(self.value, tuple)

    def has_mode(self, mode: CUDAGraphMode) -> bool:
        return mode in (self, self.decode_mode(), self.mixed_mode())

    def has_full_cudagraphs(self) -> bool:
        return self.has_mode(CUDAGraphMode.FULL)

    def has_piecewise_cudagraphs(self) -> bool:
        return self.has_mode(CUDAGraphMode.PIECEWISE)

    def requires_piecewise_compilation(self) -> bool:
        return self.has_piecewise_cudagraphs()


@dataclass
class PassConfig:
    """What a compiler would fuse; nothing is compiled."""

    eliminate_noops: bool = False
    enable_sp: bool = False
    fuse_act_quant: bool = False
    fuse_allreduce_rms: bool = False
    fuse_attn_quant: bool = False
    fuse_gemm_comms: bool = False
    fuse_norm_quant: bool = False


@dataclass
class CompilationConfig:
    mode: CompilationMode = CompilationMode.NONE
    custom_ops: list[str] = field(default_factory=list)
    ir_op_priority: dict[str, list[str]] = field(default_factory=dict)
    """Registered name of an op to the names of providers, the first that works is taken."""
    ops: Any = None
    """What is built for each op; filled by the worker before its model is built."""
    static_forward_context: dict[str, Any] = field(default_factory=dict)
    """Every attention layer of the model by its prefix; layers register themselves."""
    kernels: Any = None
    """Compiled kernels that the worker chose; ``None``: torch's own functions."""
    cudagraph_mode: CUDAGraphMode = CUDAGraphMode.NONE
    backend: str = "eager"
    splitting_ops: list[str] = field(default_factory=list)
    compile_sizes: list[int] = field(default_factory=list)
    cudagraph_capture_sizes: list[int] = field(default_factory=list)
    max_cudagraph_capture_size: int = 0
    pass_config: PassConfig = field(default_factory=PassConfig)
    inductor_compile_config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> CompilationConfig:
        return cls(
            custom_ops=list(config.custom_ops),
            ir_op_priority={op: list(names) for op, names in config.ir_op_priority.items()},
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Both modes may be given by name or number, as they also come from another process."""
        if name == "mode" and not isinstance(value, CompilationMode):
            value = CompilationMode[value] if isinstance(value, str) else CompilationMode(value)
        elif name == "cudagraph_mode" and isinstance(value, str):
            value = CUDAGraphMode[value]
        super().__setattr__(name, value)

    def __copy__(self) -> CompilationConfig:
        return self._made_of(vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompilationConfig:
        """Plugins copy whole configurations, for one part of a model say; what belongs to the
        worker, and the layers, are not copied along."""
        shared = {name: getattr(self, name) for name in ("ops", "kernels")}
        shared["static_forward_context"] = dict(self.static_forward_context)
        own = {name: value for name, value in vars(self).items() if name not in shared}
        return self._made_of({**copy.deepcopy(own, memo), **shared})

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which has parts of its own."""
        return {**vars(self), "ops": None, "kernels": None, "static_forward_context": {}}

    def _made_of(self, values: Mapping[str, Any]) -> CompilationConfig:
        made = object.__new__(type(self))
        vars(made).update(values)
        return made

    @property
    def level(self) -> CompilationMode:
        """The older name of ``mode``."""
        return self.mode

    @level.setter
    def level(self, value: CompilationMode) -> None:
        self.mode = value
