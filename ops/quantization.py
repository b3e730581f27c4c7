"""``QuantizationConfig``: which method each layer's weights are kept and applied with.

The names are the ecosystem's; methods are ``linear``'s ``QuantizeMethodBase``. Which class reads a
checkpoint is the engine's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .linear import QuantizeMethodBase


class QuantizationConfig:
    """Made once in each worker by ``from_config``, before the model is built.

    Attributes:
        packed_modules_mapping: of the model: the name of each fused layer to the names that it
            has in the checkpoint.
    """

    def __init__(self) -> None:
        self.packed_modules_mapping: dict[str, list[str]] = {}

    def get_name(self) -> str:
        raise TypeError(f"{type(self).__qualname__} must define get_name")

    def get_supported_act_dtypes(self) -> Sequence[torch.dtype]:
        """Dtypes in which a model may compute; empty: all."""
        return ()

    @classmethod
    def get_min_capability(cls) -> int:
        """On NVIDIA's devices the least compute capability, as ``major * 10 + minor``; 0: any."""
        return 0

    @staticmethod
    def get_config_filenames() -> Sequence[str]:
        """Files beside ``config.json``, the first that exists being what ``from_config`` gets
        where ``config.json`` itself says nothing."""
        return ()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """
        Args:
            config: the checkpoint's ``quantization_config``; empty where it has none.
        """
        raise TypeError(f"{cls.__qualname__} must define from_config")

    @staticmethod
    def get_from_keys(config: Mapping[str, Any], keys: Sequence[str]) -> Any:
        """What the first of the keys says that a configuration has.

        Raises:
            ValueError: it has none of them.
        """
        for key in keys:
            if key in config:
                return config[key]
        raise ValueError(
            f"the checkpoint's quantization_config has none of {', '.join(map(repr, keys))}"
        )

    @staticmethod
    def get_from_keys_or(config: Mapping[str, Any], keys: Sequence[str], default: Any) -> Any:
        """The same, or ``default``."""
        return next((config[key] for key in keys if key in config), default)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """The method of a linear layer, an embedding or a head.

        Returns:
            ``UnquantizedLinearMethod()`` leaves a linear layer alone; for an embedding or a head
            ``None`` does.
        """
        raise TypeError(f"{type(self).__qualname__} must define get_quant_method")

    def set_packed_modules(self, mapping: Mapping[str, Sequence[str]]) -> None:
        """Told the fused layers of the model that is to be built."""
        self.packed_modules_mapping = {name: list(parts) for name, parts in mapping.items()}

    def apply_vllm_mapper(self, mapper: Any) -> None:
        """Told the ``WeightsMapper`` from the checkpoint's names to those of the model that is to
        be built, for a configuration that lists layers by their names in the checkpoint."""
