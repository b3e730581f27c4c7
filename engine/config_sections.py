"""The sections of the tree of the configuration that are neither the model's nor the ops'.

Field names are the ecosystem's (vLLM's); each says what is so here. What has a field of the struct
comes from there, and what a plugin changes goes back (``config_changes``); the others are facts
that plugins ask for. The tree is ``vllm_config``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from .config import EngineConfig

if TYPE_CHECKING:
    import torch

PART_OF_FREE_MEMORY = 0.5
"""What the KV cache may take of what is free once the weights are loaded."""


@dataclass
class CacheConfig:
    block_size: int = 16
    """Tokens."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    num_gpu_blocks: int | None = None
    """Filled by the engine once the cache is sized."""
    cache_dtype: str = "auto"
    """The model's own."""
    sliding_window: int | None = None
    num_cpu_blocks: int | None = None
    """There are none: the cache stays in one memory."""
    calculate_kv_scales: bool = False
    is_attention_free: bool = False

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> CacheConfig:
        return cls(**msgspec.structs.asdict(config.cache))

    @property
    def gpu_memory_utilization(self) -> float:
        """The part of the free memory that the cache may take. It is fixed.

        Raises:
            AttributeError: it is set.
        """
        return PART_OF_FREE_MEMORY

    @gpu_memory_utilization.setter
    def gpu_memory_utilization(self, value: float) -> None:
        raise AttributeError(
            f"gpu_memory_utilization cannot be set to {value!r}: the KV cache takes at most "
            f"{PART_OF_FREE_MEMORY:g} of the free memory; set kv_cache_memory_bytes"
        )


@dataclass
class SchedulerConfig:
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 1024
    max_model_len: int = 8192
    policy: str = "fcfs"
    scheduler_cls: str = "default"
    """Name or class path; a plugin may set a class."""
    enable_chunked_prefill: bool = True
    async_scheduling: bool = False
    runner_type: str = "generate"
    is_multimodal_model: bool = False
    is_encoder_decoder: bool = False
    num_lookahead_slots: int = 0
    """Of speculative decoding, which there is none of."""
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    stream_interval: int = 1
    """Tokens of one update of a stream."""

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> SchedulerConfig:
        return cls(
            **msgspec.structs.asdict(config.scheduler), max_model_len=config.model.max_model_len
        )

    @property
    def chunked_prefill_enabled(self) -> bool:
        """The older name of ``enable_chunked_prefill``."""
        return self.enable_chunked_prefill

    def get_scheduler_cls(self) -> type[Any]:
        """The class that ``scheduler_cls`` names.

        Raises:
            hookserve.hookspecs.HostError: a name that nobody registered, or a class that cannot be
                imported.
        """
        from hookserve.hookspecs import current

        named: Any = self.scheduler_cls
        found: Any = named
        if isinstance(named, str):
            found = current().registry("scheduler").resolve(named)
        return found  # type: ignore[no-any-return]


@dataclass
class ParallelConfig:
    tensor_parallel_size: int = 1
    distributed_executor_backend: str = "uni"
    """Name or class path; a plugin may set a class."""
    worker_cls: str = "auto"
    worker_extension_cls: str = ""
    """Names or class paths, with commas between them; empty: those of plugins alone."""
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    rank: int = 0
    data_parallel_rank: int = 0
    data_parallel_rank_local: int = 0
    data_parallel_size_local: int = 1
    data_parallel_index: int = 0
    data_parallel_master_ip: str = "127.0.0.1"
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enable_eplb: bool = False
    disable_custom_all_reduce: bool = True
    """Ranks exchange tensors by ``torch.distributed`` alone."""
    nnodes: int = 1
    node_rank: int = 0

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> ParallelConfig:
        parallel = config.parallel
        return cls(
            tensor_parallel_size=parallel.tensor_parallel_size,
            distributed_executor_backend=parallel.distributed_executor_backend,
            worker_cls=parallel.worker_cls,
            worker_extension_cls=parallel.worker_extension_cls,
        )

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def local_world_size(self) -> int:
        """All ranks are on one machine."""
        return self.world_size

    @property
    def world_size_across_dp(self) -> int:
        return self.world_size * self.data_parallel_size

    @property
    def use_ray(self) -> bool:
        return self.distributed_executor_backend == "ray"


@dataclass
class LoadConfig:
    load_format: str = "auto"
    """Name in the registry of model loaders, or a class path."""
    download_dir: str | None = None
    ignore_patterns: list[str] = field(default_factory=list)
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    """``None``: weights are loaded to the model's device."""
    use_tqdm_on_load: bool = False
    pt_load_map_location: str = "cpu"
    safetensors_load_strategy: str = "lazy"

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> LoadConfig:
        load = config.load
        return cls(
            load_format=load.load_format,
            model_loader_extra_config=dict(load.model_loader_extra_config),
        )


@dataclass
class DeviceConfig:
    device_type: str = "cpu"

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> DeviceConfig:
        return cls(device_type=config.device.device_type)

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

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> AttentionConfig:
        return cls(config.attention_backend)


@dataclass
class StructuredOutputsConfig:
    backend: str = "auto"
    """Name or class path."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> StructuredOutputsConfig:
        return cls(**msgspec.structs.asdict(config.structured_outputs))


@dataclass
class ObservabilityConfig:
    log_stats: bool = True
    otlp_traces_endpoint: str | None = None
    """There is no tracing."""
    collect_detailed_traces: list[str] | None = None
    show_hidden_metrics: bool = False

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> ObservabilityConfig:
        return cls(log_stats=config.log_stats)
