"""Model loaders by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from hookserve.engine.model_loader import BaseModelLoader, DefaultModelLoader
from hookserve.engine.vllm_config import (
    LoadConfig,
    ModelConfig,
    VllmConfig,
    get_current_vllm_config,
)
from hookserve.hookspecs import declare
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

__all__ = [
    "_LOAD_FORMAT_TO_MODEL_LOADER",
    "BaseModelLoader",
    "DefaultModelLoader",
    "get_model",
    "get_model_loader",
    "register_model_loader",
]

__surface__ = {
    "BaseModelLoader": "live: base of the loaders that workers use",
    "DefaultModelLoader": "live: the loader of safetensors files",
    "_LOAD_FORMAT_TO_MODEL_LOADER": (
        "live: the classes that are registered so far, by name; setting an item registers it"
    ),
    "get_model": "live: builds and loads a model by the loader of its configuration",
    "get_model_loader": "live: the loader of a configuration",
    "register_model_loader": "live: registers a class for --load-format",
}


T = TypeVar("T", bound=type[BaseModelLoader])

_LOAD_FORMAT_TO_MODEL_LOADER = RegistryView("model_loader")


def register_model_loader(load_format: str) -> Callable[[T], T]:
    """Class decorator.

    Raises:
        ValueError: what is decorated is no subclass of ``BaseModelLoader``.
    """

    def register(model_loader_cls: T) -> T:
        given: object = model_loader_cls
        if not isinstance(given, type) or not issubclass(given, BaseModelLoader):
            raise ValueError(
                f"{given!r} cannot be registered as load format {load_format!r}: it is no "
                "subclass of BaseModelLoader"
            )
        declare("model_loader", load_format, model_loader_cls)
        return model_loader_cls

    return register


def get_model_loader(load_config: LoadConfig) -> BaseModelLoader:
    """The loader that ``load_format`` names; ``"auto"`` goes by the files of the model that is
    being loaded.

    Raises:
        ValueError: nobody registered the name; those that are there are listed.
    """
    name = load_config.load_format
    if name in ("auto", "hf"):
        name = get_current_vllm_config().model_config.format
    if name not in _LOAD_FORMAT_TO_MODEL_LOADER:
        known = ", ".join(_LOAD_FORMAT_TO_MODEL_LOADER)
        raise ValueError(f"no load format {name!r} is registered; there are: auto, {known}")
    loader: BaseModelLoader = _LOAD_FORMAT_TO_MODEL_LOADER[name](load_config)
    return loader


def get_model(
    *,
    vllm_config: VllmConfig,
    model_config: ModelConfig | None = None,
    prefix: str = "",
    load_config: LoadConfig | None = None,
) -> nn.Module:
    """Build and load a model.

    Args:
        model_config: in place of the configuration's own, as ``load_config``.
    """
    loader = get_model_loader(load_config or vllm_config.load_config)
    return loader.load_model(vllm_config, model_config or vllm_config.model_config, prefix)
