"""The whole tree, and the one that is current."""

from __future__ import annotations

from hookserve.engine.vllm_config import (
    VllmConfig,
    get_cached_compilation_config,
    get_current_vllm_config,
    get_current_vllm_config_or_none,
    get_layers_from_vllm_config,
)
from hookserve.plugins_builtin.vllm_compat.current_config import set_current_vllm_config

__all__ = [
    "VllmConfig",
    "get_cached_compilation_config",
    "get_current_vllm_config",
    "get_current_vllm_config_or_none",
    "get_layers_from_vllm_config",
    "set_current_vllm_config",
]

__surface__ = {
    "VllmConfig": "live: given to models, platforms, schedulers, loggers and processors",
    "get_cached_compilation_config": "live: of the model that is being built",
    "get_current_vllm_config": "live: what layers ask while a model is built",
    "get_current_vllm_config_or_none": "live: the same, or None outside",
    "get_layers_from_vllm_config": "live: finds attention layers by class and prefix",
    "set_current_vllm_config": "live: what is current within; ops and layers that are built by "
    "hand there are a plugin's own where it replaces a class",
}
