"""The configuration that models, platforms, loggers and processors receive."""

from __future__ import annotations

from hookserve.engine.vllm_config import (
    AttentionConfig,
    CacheConfig,
    CompilationConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    VllmConfig,
    get_current_vllm_config,
    set_current_vllm_config,
)

__all__ = [
    "AttentionConfig",
    "CacheConfig",
    "CompilationConfig",
    "DeviceConfig",
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

__surface__ = {
    "AttentionConfig": "live: the worker chooses each layer's attention by it",
    "CacheConfig": "live: the engine sizes the KV cache by it",
    "CompilationConfig": "live: ops and attention layers are found through it",
    "DeviceConfig": "live: the worker takes its device from it",
    "LoadConfig": "live: model loaders are built with it",
    "ModelConfig": "live: models are built with it",
    "ObservabilityConfig": "live: says whether statistics are collected",
    "ParallelConfig": "live: layers read their ranks from it",
    "SchedulerConfig": "live: the scheduler is built with it",
    "StructuredOutputsConfig": "live: grammar backends are chosen by it",
    "VllmConfig": "live: given to models, platforms, schedulers, loggers and processors",
    "get_current_vllm_config": "live: what layers ask while a model is built",
    "set_current_vllm_config": "live: workers enter it while a model is built",
}
