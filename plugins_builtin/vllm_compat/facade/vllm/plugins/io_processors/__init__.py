"""Plugins that turn data into prompts, and outputs into an answer."""

from __future__ import annotations

from typing import Any

from hookserve.engine.io_processor import build_io_processor, chosen_io_processor
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import UnknownNameError, current

from .interface import IOProcessor

__all__ = ["IOProcessor", "get_io_processor", "has_io_processor"]

__surface__ = {
    "IOProcessor": "live: base of the one that --io-processor-plugin names, which is built at the "
    "start; no route asks it, as no pooling model is served so far",
    "get_io_processor": "live: builds the one that is named, or that the configuration names",
    "has_io_processor": "live: whether the operator or the checkpoint names one",
}


def has_io_processor(vllm_config: VllmConfig, plugin_from_init: str | None = None) -> bool:
    return bool(plugin_from_init or chosen_io_processor(vllm_config.model_config))


def get_io_processor(
    vllm_config: VllmConfig, renderer: Any = None, plugin_from_init: str | None = None
) -> IOProcessor[Any, Any] | None:
    """
    Args:
        plugin_from_init: a name in the place of the configuration's.

    Raises:
        ValueError: nobody registered the name; with those that there are.
        hookserve.hookspecs.PluginError: it cannot be built.
    """
    name = plugin_from_init or chosen_io_processor(vllm_config.model_config)
    if name is None:
        return None
    try:
        return build_io_processor(current(), vllm_config, renderer, name)
    except UnknownNameError as error:
        raise ValueError(str(error)) from error
