"""``VllmConfig``: the mutable configuration tree with the ecosystem's section and field names.

Models, platforms, loggers and processors receive only this. It is made from ``EngineConfig`` in
each process, and never crosses one. Importing this file does not import torch; ``dtype`` does, on
first use.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from .config import EngineConfig
from .model_section import HfConfig, ModelConfig

if TYPE_CHECKING:
    import torch

__all__ = [
    "AttentionConfig",
    "CacheConfig",
    "CompilationConfig",
    "DeviceConfig",
    "HfConfig",
    "LoadConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "SchedulerConfig",
    "StructuredOutputsConfig",
    "VllmConfig",
    "get_current_vllm_config",
    "set_current_vllm_config",
]


@dataclass
class CacheConfig:
    block_size: int
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool
    num_gpu_blocks: int | None = None
    """Filled by the engine once the cache is sized."""
    cache_dtype: str = "auto"
    sliding_window: int | None = None


@dataclass
class SchedulerConfig:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: str
    scheduler_cls: str
    """Name or class path."""
    enable_chunked_prefill: bool = True
    async_scheduling: bool = False


@dataclass
class ParallelConfig:
    tensor_parallel_size: int
    distributed_executor_backend: str
    worker_cls: str
    worker_extension_cls: str
    """Names or class paths, with commas between them; empty: those of plugins alone."""
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    rank: int = 0

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass
class LoadConfig:
    load_format: str
    download_dir: str | None = None
    ignore_patterns: list[str] = field(default_factory=list)
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)


@dataclass
class DeviceConfig:
    device_type: str

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device(self.device_type)


@dataclass
class AttentionConfig:
    backend: str | None = None
    """Name or class path; ``None``: the platform's."""
    backend_classes: Sequence[Any] = ()
    """Filled by the worker before its model is built: each layer takes the first that can do what
    it asks."""


@dataclass
class CompilationConfig:
    mode: int = 0
    custom_ops: list[str] = field(default_factory=list)
    ir_op_priority: dict[str, list[str]] = field(default_factory=dict)
    """Registered name of an op to the names of providers, the first that works is taken."""
    ops: Any = None
    """What is built for each op; filled by the worker before its model is built."""
    static_forward_context: dict[str, Any] = field(default_factory=dict)
    """Every attention layer of the model by its prefix; layers register themselves."""
    kernels: Any = None
    """Compiled kernels that the worker chose; ``None``: torch's own functions."""


@dataclass
class StructuredOutputsConfig:
    backend: str = "auto"
    """Name or class path."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


@dataclass
class ObservabilityConfig:
    log_stats: bool = True


@dataclass
class VllmConfig:
    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    load_config: LoadConfig
    device_config: DeviceConfig
    compilation_config: CompilationConfig
    observability_config: ObservabilityConfig
    additional_config: dict[str, Any]
    attention_config: AttentionConfig = field(default_factory=AttentionConfig)
    structured_outputs_config: StructuredOutputsConfig = field(
        default_factory=StructuredOutputsConfig
    )
    quant_config: Any = None
    """Filled by the worker before its model is built."""
    lora_config: Any = None
    speculative_config: Any = None
    kv_transfer_config: Any = None
    engine_config: EngineConfig | None = field(default=None, repr=False)
    """What this was made from: the form that crosses to another process."""

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> VllmConfig:
        """Build the tree; lists and dicts are copies, so that changing it changes nothing else."""
        model = config.model
        tree = cls(
            model_config=ModelConfig.from_struct(model, enforce_eager=config.enforce_eager),
            cache_config=CacheConfig(
                block_size=config.cache.block_size,
                kv_cache_memory_bytes=config.cache.kv_cache_memory_bytes,
                num_gpu_blocks_override=config.cache.num_gpu_blocks_override,
                enable_prefix_caching=config.cache.enable_prefix_caching,
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=config.scheduler.max_num_seqs,
                max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
                max_model_len=model.max_model_len,
                policy=config.scheduler.policy,
                scheduler_cls=config.scheduler.scheduler_cls,
            ),
            parallel_config=ParallelConfig(
                tensor_parallel_size=config.parallel.tensor_parallel_size,
                distributed_executor_backend=config.parallel.distributed_executor_backend,
                worker_cls=config.parallel.worker_cls,
                worker_extension_cls=config.parallel.worker_extension_cls,
            ),
            load_config=LoadConfig(load_format=config.load.load_format),
            device_config=DeviceConfig(device_type=config.device.device_type),
            compilation_config=CompilationConfig(
                custom_ops=list(config.custom_ops),
                ir_op_priority={op: list(names) for op, names in config.ir_op_priority.items()},
            ),
            observability_config=ObservabilityConfig(log_stats=config.log_stats),
            additional_config=dict(config.additional_config),
            attention_config=AttentionConfig(config.attention_backend),
            structured_outputs_config=StructuredOutputsConfig(
                **msgspec.structs.asdict(config.structured_outputs)
            ),
            engine_config=config,
        )
        for path, value in config.tree_changes.items():
            section, _, name = path.rpartition(".")
            setattr(getattr(tree, section) if section else tree, name, copy.deepcopy(value))
        return tree


_current: contextvars.ContextVar[VllmConfig | None] = contextvars.ContextVar(
    "hookserve_vllm_config", default=None
)


@contextlib.contextmanager
def set_current_vllm_config(config: VllmConfig) -> Iterator[None]:
    """Within the block, ``get_current_vllm_config`` answers ``config``."""
    token = _current.set(config)
    try:
        yield
    finally:
        _current.reset(token)


def get_current_vllm_config() -> VllmConfig:
    """The configuration of the model that is being built.

    Raises:
        RuntimeError: outside ``set_current_vllm_config``.
    """
    config = _current.get()
    if config is None:
        raise RuntimeError(
            "no VllmConfig is current; build layers inside set_current_vllm_config(config)"
        )
    return config
