"""The classes that the plugin declares, imported where they are used: they need torch."""

from __future__ import annotations

import os
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from hookserve.engine.model_loader import BaseModelLoader
from hookserve.engine.vllm_config import ModelConfig
from hookserve.ops.linear import LinearBase, LinearMethodBase
from hookserve.ops.paged_attention import PagedAttentionBackend, PagedAttentionImpl
from hookserve.ops.parameter import set_weight_attrs
from hookserve.ops.quantization import QuantizationConfig


class Int8RowsMethod(LinearMethodBase):
    """Whole numbers of 8 bits, and a factor for each row."""

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        rows = sum(output_partition_sizes)
        shape = (rows, input_size_per_partition)
        weight = nn.Parameter(torch.empty(shape, dtype=torch.int8), requires_grad=False)
        scale = nn.Parameter(torch.empty(rows, dtype=params_dtype), requires_grad=False)
        set_weight_attrs(weight, {"input_dim": 1, "output_dim": 0, **extra})
        set_weight_attrs(scale, {"output_dim": 0, **extra})
        layer.register_parameter("weight", weight)
        layer.register_parameter("weight_scale", scale)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        assert not hasattr(layer, "is_ready")
        layer.is_ready = True  # type: ignore[assignment]

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        product = F.linear(x, layer.weight.to(x.dtype)) * layer.weight_scale  # type: ignore
        return product if bias is None else product + bias


class Int8Rows(QuantizationConfig):
    def __init__(self, bits: int) -> None:
        super().__init__()
        if bits != 8:
            raise ValueError(f"{bits} bits; expected 8")

    def get_name(self) -> str:
        return "int8_rows"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32]

    @staticmethod
    def get_config_filenames() -> list[str]:
        return ["int8_rows.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Int8Rows:
        return cls(config["bits"])

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Int8RowsMethod | None:
        return Int8RowsMethod() if isinstance(layer, LinearBase) else None


class CountingImpl(PagedAttentionImpl):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_calls = 0

    def forward(self, *args: Any) -> torch.Tensor:
        self.num_calls += 1
        return super().forward(*args)


class CountingBackend(PagedAttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "counting"

    @staticmethod
    def get_impl_cls() -> type[CountingImpl]:
        return CountingImpl


class FilledImpl(CountingImpl):
    """As backends do that fill a tensor which the layer hands them."""

    writes_output = True

    def forward(self, *args: Any) -> torch.Tensor:
        output = args[-1]
        return output.copy_(super().forward(*args).view(output.shape))  # type: ignore[no-any-return]


class NarrowBackend(CountingBackend):
    """Of one size of head, and without windows."""

    @staticmethod
    def get_name() -> str:
        return "narrow"

    @staticmethod
    def get_impl_cls() -> type[CountingImpl]:
        return FilledImpl

    @staticmethod
    def get_supported_head_sizes() -> list[int]:
        return [16]

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return False


class NumPyLoader(BaseModelLoader):
    """Of weights in one file of numpy's, ``weights.npz``."""

    def download_model(self, model_config: ModelConfig) -> None:
        self.file = os.path.join(model_config.path, "weights.npz")
        if not os.path.exists(self.file):
            raise FileNotFoundError(self.file)

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        with numpy.load(self.file) as arrays:
            weights: Any = ((name, torch.from_numpy(arrays[name])) for name in arrays.files)
            if self.change_weights is not None:
                weights = self.change_weights(weights)
            model.load_weights(weights)  # type: ignore[operator]


class MyLlamaConfig:
    """A configuration with names of its own."""

    def __init__(self, width: int, depth: int, **values: Any) -> None:
        self.__dict__ |= values
        self.width = self.hidden_size = width
        self.depth = self.num_hidden_layers = depth


def without_bias(values: dict[str, Any]) -> dict[str, Any]:
    """A fix-up of an architecture."""
    return {**values, "mlp_bias": False}
