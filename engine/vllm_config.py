"""``VllmConfig``: the mutable configuration tree with the ecosystem's section and field names.

Models, platforms, loggers and processors receive only this. It is made from ``EngineConfig`` in
each process, and never crosses one. Importing this file does not import torch; ``dtype`` does, on
first use.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import hashlib
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from .compilation_section import CompilationConfig, CompilationMode, CUDAGraphMode, PassConfig
from .config import EngineConfig
from .config_sections import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from .model_section import HfConfig, ModelConfig

__all__ = [
    "AttentionConfig",
    "CUDAGraphMode",
    "CacheConfig",
    "CompilationConfig",
    "CompilationMode",
    "DeviceConfig",
    "HfConfig",
    "LoadConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "PassConfig",
    "SchedulerConfig",
    "StructuredOutputsConfig",
    "VllmConfig",
    "get_cached_compilation_config",
    "get_current_vllm_config",
    "get_current_vllm_config_or_none",
    "get_layers_from_vllm_config",
    "set_current_vllm_config",
]


@dataclass
class VllmConfig:
    """Made by hand it has every section's defaults, and no model."""

    model_config: ModelConfig = field(default=None)  # type: ignore[assignment]
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    load_config: LoadConfig = field(default_factory=LoadConfig)
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    additional_config: dict[str, Any] = field(default_factory=dict)
    attention_config: AttentionConfig = field(default_factory=AttentionConfig)
    structured_outputs_config: StructuredOutputsConfig = field(
        default_factory=StructuredOutputsConfig
    )
    quant_config: Any = None
    """Filled by the worker before its model is built."""
    lora_config: Any = None
    speculative_config: Any = None
    kv_transfer_config: Any = None
    kv_events_config: Any = None
    ec_transfer_config: Any = None
    instance_id: str = ""
    """Five characters, the same in every process of one engine, and another for each engine."""
    engine_config: EngineConfig | None = field(default=None, repr=False)
    """What this was made from: the form that crosses to another process."""

    @classmethod
    def from_engine_config(cls, config: EngineConfig) -> VllmConfig:
        """Build the tree; lists and dicts are copies, so that changing it changes nothing else."""
        tree = cls(
            model_config=ModelConfig.from_struct(config.model, enforce_eager=config.enforce_eager),
            cache_config=CacheConfig.from_engine_config(config),
            scheduler_config=SchedulerConfig.from_engine_config(config),
            parallel_config=ParallelConfig.from_engine_config(config),
            load_config=LoadConfig.from_engine_config(config),
            device_config=DeviceConfig.from_engine_config(config),
            compilation_config=CompilationConfig.from_engine_config(config),
            observability_config=ObservabilityConfig.from_engine_config(config),
            additional_config=dict(config.additional_config),
            attention_config=AttentionConfig.from_engine_config(config),
            structured_outputs_config=StructuredOutputsConfig.from_engine_config(config),
            instance_id=config.instance_id,
            engine_config=config,
        )
        for path, value in config.tree_changes.items():
            section, _, name = path.rpartition(".")
            holder = operator.attrgetter(section)(tree) if section else tree
            setattr(holder, name, copy.deepcopy(value))
        return tree

    def compute_hash(self) -> str:
        """Ten hexadecimal digits that are the same for the same configuration, in every process."""
        if self.engine_config is None:
            given = repr(dataclasses.replace(self, quant_config=None)).encode()
        else:
            same = msgspec.structs.replace(self.engine_config, instance_id="")
            given = msgspec.json.encode(same, order="deterministic")
        return hashlib.sha256(given).hexdigest()[:10]

    def with_hf_config(
        self, hf_config: Any, architectures: Sequence[str] | None = None
    ) -> VllmConfig:
        """This configuration for a part of the model that has one of its own; everything else is
        shared with this."""
        model = copy.copy(self.model_config)
        model.hf_config = hf_config
        named = architectures or getattr(hf_config, "architectures", None)
        if named:
            model.architectures = list(named)
        return dataclasses.replace(self, model_config=model)


_current: contextvars.ContextVar[VllmConfig | None] = contextvars.ContextVar(
    "hookserve_vllm_config", default=None
)


@contextlib.contextmanager
def set_current_vllm_config(vllm_config: VllmConfig) -> Iterator[None]:
    """Within the block, ``get_current_vllm_config`` answers this."""
    token = _current.set(vllm_config)
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


def get_current_vllm_config_or_none() -> VllmConfig | None:
    """As ``get_current_vllm_config``; ``None`` where no model is being built."""
    return _current.get()


def get_cached_compilation_config() -> CompilationConfig:
    """Of the model that is being built. Raises as ``get_current_vllm_config``."""
    return get_current_vllm_config().compilation_config


L = TypeVar("L")


def get_layers_from_vllm_config(
    vllm_config: VllmConfig, layer_type: type[L], layer_names: Sequence[str] | None = None
) -> dict[str, L]:
    """The attention layers of one class, by prefix.

    Args:
        layer_names: of these alone.

    Raises:
        KeyError: a name that no layer has.
    """
    layers = vllm_config.compilation_config.static_forward_context
    names = list(layers) if layer_names is None else layer_names
    return {name: layers[name] for name in names if isinstance(layers[name], layer_type)}
