"""What a layer may ask for while the model runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hookserve.engine.vllm_config import VllmConfig
from hookserve.ops.context import ForwardContext, get_forward_context
from hookserve.ops.context import set_forward_context as entering

__all__ = [
    "ForwardContext",
    "get_forward_context",
    "is_forward_context_available",
    "set_forward_context",
]

__surface__ = {
    "ForwardContext": (
        "live: attn_metadata is one for all layers, None while profiling; no_compile_layers "
        "holds the attention layers by prefix"
    ),
    "get_forward_context": "live: the context of the running step",
    "is_forward_context_available": "live: whether a model is running",
    "set_forward_context": "live: runs a model outside the engine's steps; steps do not nest",
    "BatchDescriptor": "refused: no graphs are captured",
    "DPMetadata": "refused: there is one copy of the model",
}


@contextmanager
def set_forward_context(attn_metadata: Any, vllm_config: VllmConfig) -> Iterator[None]:
    """Within the block the model of a configuration may be run.

    Args:
        attn_metadata: ``None``: attention returns zeros, and touches no cache.

    Raises:
        RuntimeError: a step is running.
    """
    layers = vllm_config.compilation_config.static_forward_context
    with entering(ForwardContext(attn_metadata, layers)):
        yield


def is_forward_context_available() -> bool:
    try:
        get_forward_context()
    except RuntimeError:
        return False
    return True
