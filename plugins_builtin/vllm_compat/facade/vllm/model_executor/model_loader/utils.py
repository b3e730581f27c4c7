"""Building a model, and finishing it once its weights are in."""

from __future__ import annotations

import torch
from torch import nn

from hookserve.engine.model_loader import initialize_model
from hookserve.engine.model_loader import process_weights_after_loading as finish
from hookserve.engine.vllm_config import ModelConfig
from hookserve.plugins_builtin.vllm_compat.lazy import names_from

__all__ = ["initialize_model", "process_weights_after_loading", "set_default_torch_dtype"]  # noqa: F822

__surface__ = {
    "initialize_model": "live: loaders build the model by it",
    "process_weights_after_loading": (
        "live: for a loader of a plugin; those here call the function that it calls, so a "
        "patch of this one has no effect"
    ),
    "set_default_torch_dtype": "live: an older path of vllm.utils.torch_utils",
}

__getattr__ = names_from(
    __name__,
    {
        "set_default_torch_dtype": "...utils.torch_utils",
    },
)


def process_weights_after_loading(
    model: nn.Module, model_config: ModelConfig, target_device: torch.device
) -> None:
    """Let every layer rearrange its weights.

    Args:
        target_device: where they lie; they are not moved.
    """
    with target_device:
        finish(model, model_config)
