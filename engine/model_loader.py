"""Model loaders: build the model, fill it with weights, prepare the weights for use.

A loader is chosen by name through the registry ``model_loader``. What lies in the files is
``model_files``' and ``weight_iterators``' business.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookserve.hookspecs import current
from hookserve.hookspecs.context import enter
from hookserve.ops.context import get_tp_group, set_model_context
from hookserve.ops.parameter import missing_parts

from .errors import ConfigError, ModelFileError
from .model_files import read_model_files
from .model_registry import constructor_arguments, is_old_style, resolve_architecture
from .model_shape import wrong_field
from .quantized import anybody
from .vllm_config import HfConfig, LoadConfig, ModelConfig, VllmConfig, set_current_vllm_config
from .weight_iterators import iterate_gguf, iterate_safetensors

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.calls import Calls

logger = logging.getLogger(__name__)

Weights = Iterator[tuple[str, torch.Tensor]]


class _WeightChanges:
    """What the hook ``weights`` makes of a loader's stream, and whether the loader asked."""

    def __init__(self, calls: Calls, vllm_config: VllmConfig) -> None:
        self._calls = calls
        self._vllm_config = vllm_config
        self._is_used = False

    def __call__(self, weights: Weights) -> Weights:
        self._is_used = True
        return self._calls.weights(weights, self._vllm_config)

    def tell_if_unused(self, loader: type[BaseModelLoader]) -> None:
        if not self._is_used:
            guards = self._calls.hooks["weights"].guards
            logger.warning(
                "the loader %s hands no weights through change_weights: the hook weights of %s is "
                "not called",
                loader.__qualname__,
                ", ".join(guard.plugin.identity for guard in guards),
            )


class BaseModelLoader(ABC):
    """What a loader is: ``load_model`` is called once in each worker.

    Attributes:
        change_weights: what the hook ``weights`` makes of the checkpoint's stream: a loader hands
            its stream through this before the model reads it; ``None``: nobody changes it.
    """

    change_weights: Callable[[Weights], Weights] | None = None

    def __init__(self, load_config: LoadConfig) -> None:
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config: ModelConfig) -> None:
        """Make sure that the model's files are on this machine."""

    @abstractmethod
    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Fill the model with the checkpoint's weights.

        Raises:
            ModelFileError: for a checkpoint that does not fit the model, by file and tensor.
        """

    def create_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> nn.Module:
        return initialize_model(vllm_config, prefix=prefix, model_config=model_config)

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> nn.Module:
        """Build, load and prepare the model; returned ready to run."""
        self.download_model(model_config)
        model = self.create_model(vllm_config, model_config, prefix)
        self.load_weights(model, model_config)
        if isinstance(self.change_weights, _WeightChanges):
            self.change_weights.tell_if_unused(type(self))
        process_weights_after_loading(model, model_config)
        return model.eval()


class DefaultModelLoader(BaseModelLoader):
    """Safetensors files of a local folder."""

    def download_model(self, model_config: ModelConfig) -> None:
        self._prepare_weights(model_config.path)

    def _prepare_weights(self, model_name_or_path: str) -> tuple[str, list[str]]:
        """The folder and the weight files to read, in order."""
        files = read_model_files(model_name_or_path, anybody)  # front has asked
        if files.format != "safetensors":
            raise ModelFileError(
                f"{model_name_or_path}: holds {files.format} weights, which this loader does not "
                "read; leave --load-format at auto"
            )
        return files.path, list(files.weight_files)

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the checkpoint, under the ecosystem's name."""
        _, files = self._prepare_weights(model_config.path)
        yield from iterate_safetensors(files)

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        weights = self.get_all_weights(model_config, model)
        if self.change_weights is not None:
            weights = self.change_weights(weights)
        source = _Tracked(weights)
        by = "" if self.change_weights is None else ", as plugins have changed it"
        try:
            loaded = model.load_weights(iter(source))  # type: ignore[operator]
        except ValueError as error:
            raise ModelFileError(f"{model_config.path}: {error}{source.at()}{by}") from error
        if loaded is None:  # the model says that it keeps no account
            return
        missing = _missing(model, loaded)
        if missing:
            shown = ", ".join(missing[:5]) + (
                f" and {len(missing) - 5} more" if missing[5:] else ""
            )
            raise ModelFileError(
                f"{model_config.path}: the checkpoint{by} lacks weights that the model needs: "
                f"{shown}"
            )


class GGUFModelLoader(DefaultModelLoader):
    """One GGUF file, dequantized to the model's dtype."""

    def _prepare_weights(self, model_name_or_path: str) -> tuple[str, list[str]]:
        if not model_name_or_path.endswith(".gguf"):
            raise ModelFileError(
                f"{model_name_or_path}: is not a .gguf file, which is all that this loader "
                "reads; leave --load-format at auto"
            )
        return model_name_or_path, [model_name_or_path]

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Iterator[tuple[str, torch.Tensor]]:
        _, files = self._prepare_weights(model_config.path)
        for file in files:
            # Plugins that change weights see tensors.
            in_parts = get_tp_group().world_size > 1 and self.change_weights is None
            yield from iterate_gguf(file, model_config.dtype, in_parts=in_parts)


def _missing(model: nn.Module, loaded: Iterable[str]) -> list[str]:
    """Parameters that nothing was loaded into, and parts of those that are merged of several."""
    parameters = dict(model.named_parameters())
    parts = [
        f"{name} (part {part})"
        for name, parameter in parameters.items()
        for part in sorted(missing_parts(parameter), key=str)
    ]
    return sorted([*parameters.keys() - set(loaded), *parts])


class _Tracked:
    """An iterator over weights that knows the last name it gave, for error messages."""

    def __init__(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._weights = weights
        self._last: str | None = None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._weights:
            self._last = name
            yield name, tensor

    def at(self) -> str:
        return f" (at tensor {self._last!r})" if self._last else ""


def loader_name(vllm_config: VllmConfig) -> str:
    """What ``load_config.load_format`` names; ``"auto"`` goes by the files' format."""
    name = vllm_config.load_config.load_format
    return vllm_config.model_config.format if name == "auto" else name


def get_model_loader(vllm_config: VllmConfig, host: Host | None = None) -> BaseModelLoader:
    """The loader that ``loader_name`` names.

    Raises:
        ConfigError: if what is registered under the name is not a loader, or is a built-in one
            and there is a configuration for it.
    """
    host = host or current()
    name = loader_name(vllm_config)
    loader_class = host.registry("model_loader").resolve(name)
    if not isinstance(loader_class, type) or not issubclass(loader_class, BaseModelLoader):
        raise ConfigError(
            f"load format {name!r}: {loader_class!r} is not a subclass of "
            "hookserve.engine.model_loader.BaseModelLoader"
        )
    claim = host.registry("model_loader").get(name)
    extra = vllm_config.load_config.model_loader_extra_config
    if extra and claim is not None and claim.plugin.is_builtin:
        raise ConfigError(
            f"--model-loader-extra-config {extra}: the loader {name!r} of {claim.owner} takes "
            "none; expected {}, or a plugin's loader by --load-format"
        )
    loader = loader_class(vllm_config.load_config)
    if host.calls.hooks["weights"].guards:
        loader.change_weights = _WeightChanges(host.calls, vllm_config)
    return loader


def initialize_model(
    vllm_config: VllmConfig,
    *,
    prefix: str = "",
    model_class: type[Any] | None = None,
    model_config: ModelConfig | None = None,
) -> nn.Module:
    """Build the model without its weights.

    Args:
        model_class: the class to build; ``None``: the one registered for the architecture.
        model_config: in place of ``vllm_config.model_config``.
    """
    config = model_config or vllm_config.model_config
    owner, plugin = "", None
    if model_class is None:
        name, model_class = resolve_architecture(config.architectures, current())
        claim = current().registry("model").get(name)
        if claim is not None:
            owner, plugin = f" of {claim.owner}", claim.plugin
    if vllm_config.quant_config is not None:
        fused = getattr(model_class, "packed_modules_mapping", {})
        vllm_config.quant_config.set_packed_modules(fused)
        mapper = getattr(model_class, "hf_to_vllm_mapper", None)
        if mapper is not None:
            vllm_config.quant_config.apply_vllm_mapper(mapper.get_rename_mapper())
    arguments = _constructor_arguments(model_class, owner, vllm_config, config, prefix)
    try:
        with enter(plugin), building(vllm_config, config):
            model = model_class(**arguments)
    except AttributeError as error:
        if not isinstance(error.obj, HfConfig):
            raise
        needed = f"a value, which {model_class.__qualname__}{owner} needs"
        raise ModelFileError(
            wrong_field(config.path, str(error.name), "nothing", needed)
        ) from error
    assert isinstance(model, nn.Module)
    return model


def _constructor_arguments(
    model_class: type[Any],
    owner: str,
    vllm_config: VllmConfig,
    model_config: ModelConfig,
    prefix: str,
) -> dict[str, Any]:
    """What the class is constructed with, in the style in which it is written."""
    if is_old_style(model_class):
        logger.warning(
            "model %s%s is constructed in an old style, from parts of the configuration; "
            "__init__(*, vllm_config, prefix='') is the one that lasts",
            model_class.__qualname__,
            owner,
        )
    values = {
        "vllm_config": vllm_config,
        "config": model_config.hf_config,
        "cache_config": vllm_config.cache_config,
        "quant_config": vllm_config.quant_config,
        "lora_config": vllm_config.lora_config,
        "scheduler_config": vllm_config.scheduler_config,
        "prefix": prefix,
    }
    return {name: values[name] for name in constructor_arguments(model_class)}


@contextlib.contextmanager
def building(vllm_config: VllmConfig, model_config: ModelConfig) -> Iterator[None]:
    """Layers made within take dtype, device and their place in the step from the configuration."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(model_config.dtype)
    try:
        with (
            set_current_vllm_config(vllm_config),
            set_model_context(
                static_forward_context=vllm_config.compilation_config.static_forward_context,
                dtype=model_config.dtype,
                block_size=vllm_config.cache_config.block_size,
                max_model_len=model_config.max_model_len,
                attention_backends=vllm_config.attention_config.backend_classes,
                kernels=vllm_config.compilation_config.kernels,
                ops=vllm_config.compilation_config.ops,
            ),
            vllm_config.device_config.device,
        ):
            yield
    finally:
        torch.set_default_dtype(default)


def process_weights_after_loading(model: nn.Module, model_config: ModelConfig) -> None:
    """Let every layer's method, every attention layer, and the model itself rearrange weights."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)
    for module in model.modules():
        own = getattr(module, "process_weights_after_loading", None)
        if not callable(own):
            continue
        if module is model:
            own()
        else:
            own(model_config.dtype)
