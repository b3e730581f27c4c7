"""The configuration that models, platforms, loggers and processors receive.

The tree is mutable, and one in each process; what a platform, or a wrapper of
``EngineArgs.create_engine_config``, changes in front reaches the other processes.
"""

from __future__ import annotations

from . import (
    attention,
    cache,
    compilation,
    device,
    kv_transfer,
    load,
    lora,
    model,
    observability,
    parallel,
    pooler,
    scheduler,
    speculative,
    structured_outputs,
    utils,
    vllm,
)
from .attention import AttentionConfig
from .cache import CacheConfig
from .compilation import (
    CompilationConfig,
    CompilationLevel,
    CompilationMode,
    CUDAGraphMode,
    PassConfig,
)
from .device import DeviceConfig
from .kv_transfer import KVTransferConfig
from .load import LoadConfig
from .lora import LoRAConfig
from .model import ModelConfig
from .observability import ObservabilityConfig
from .parallel import ParallelConfig
from .pooler import PoolerConfig
from .scheduler import SchedulerConfig
from .speculative import SpeculativeConfig
from .structured_outputs import StructuredOutputsConfig
from .utils import config, getattr_iter, replace
from .vllm import (
    VllmConfig,
    get_cached_compilation_config,
    get_current_vllm_config,
    get_current_vllm_config_or_none,
    get_layers_from_vllm_config,
    set_current_vllm_config,
)

__all__ = [
    "AttentionConfig",
    "CUDAGraphMode",
    "CacheConfig",
    "CompilationConfig",
    "CompilationLevel",
    "CompilationMode",
    "DeviceConfig",
    "KVTransferConfig",
    "LoRAConfig",
    "LoadConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "PassConfig",
    "PoolerConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
    "StructuredOutputsConfig",
    "VllmConfig",
    "config",
    "get_cached_compilation_config",
    "get_current_vllm_config",
    "get_current_vllm_config_or_none",
    "get_layers_from_vllm_config",
    "getattr_iter",
    "replace",
    "set_current_vllm_config",
]

__surface__ = {
    **attention.__surface__,
    **cache.__surface__,
    **compilation.__surface__,
    **device.__surface__,
    **kv_transfer.__surface__,
    **load.__surface__,
    **lora.__surface__,
    **model.__surface__,
    **observability.__surface__,
    **parallel.__surface__,
    **pooler.__surface__,
    **scheduler.__surface__,
    **speculative.__surface__,
    **structured_outputs.__surface__,
    **utils.__surface__,
    **vllm.__surface__,
    "KVEventsConfig": "refused: blocks of the cache are announced to nobody; the hook after_step "
    "sees each step",
    "MultiModalConfig": "refused: only text is served",
    "ProfilerConfig": "refused: there is no profiler; run the process under one",
    "SpeechToTextConfig": "refused: only text is served",
}
