"""A quantization, a loader and an attention backend as packages for vLLM write them. Import it
where ``vllm`` can be imported, and where a plugin's code runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.parameter import Parameter
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    get_quantization_config,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.parameter import (
    ChannelQuantScaleParameter,
    ModelWeightParameter,
    PerTensorScaleParameter,
)
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

streamed: list[str] = []
built: list[int] = []


@register_quantization_config("toy_int8")
class ToyInt8Config(QuantizationConfig):
    def __init__(self, left_alone: list[str]) -> None:
        super().__init__()
        self.left_alone = left_alone

    def get_name(self) -> str:
        return "toy_int8"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 70

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ToyInt8Config:
        assert cls.get_from_keys(config, ["method", "quant_method"]) == "toy_int8"
        return cls(cls.get_from_keys_or(config, ["modules_to_not_convert"], []))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        assert not isinstance(layer, FusedMoE)
        if not isinstance(layer, LinearBase):
            return None
        name = prefix.rpartition(".")[2]
        fused = self.packed_modules_mapping.get(name, [name])
        if all(part in self.left_alone for part in fused):
            return UnquantizedLinearMethod()
        return ToyInt8Method()


@register_weight_loader_v2_supported_method
class ToyInt8Method(LinearMethodBase):
    """``weight`` in int8; times a scale of each output, times one of each merged part."""

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        weight_loader = extra_weight_attrs["weight_loader"]
        layer.logical_widths = output_partition_sizes
        outputs = sum(output_partition_sizes)
        weight = ModelWeightParameter(
            data=torch.empty(outputs, input_size_per_partition, dtype=torch.int8),
            input_dim=1,
            output_dim=0,
            weight_loader=weight_loader,
        )
        layer.register_parameter("weight", weight)
        scale = ChannelQuantScaleParameter(
            data=torch.empty(outputs), output_dim=0, weight_loader=weight_loader
        )
        layer.register_parameter("weight_scale", scale)
        part_scale = PerTensorScaleParameter(
            data=torch.empty(len(output_partition_sizes)), weight_loader=weight_loader
        )
        layer.register_parameter("part_scale", part_scale)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        widths = torch.tensor(layer.logical_widths)
        scale = layer.weight_scale * layer.part_scale.repeat_interleave(widths)
        layer.weight_scale = Parameter(scale.data, requires_grad=False)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.linear(x, layer.weight.to(x.dtype) * layer.weight_scale[:, None], bias)


@register_model_loader("toy_loader")
class ToyLoader(BaseModelLoader):
    def download_model(self, model_config: Any) -> None:
        pass

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        inner = get_model_loader(dataclasses.replace(self.load_config, load_format="auto"))
        for name, tensor in inner.get_all_weights(model_config, model):
            streamed.append(name)
            model.load_weights([(name, tensor)])


@dataclass
class ToyMetadata:
    starts: list[int]
    seq_lens: list[int]
    block_table: torch.Tensor


class ToyBuilder(AttentionMetadataBuilder):
    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> ToyMetadata:
        common = common_attn_metadata
        built.append(len(self.layer_names))
        assert common.causal and common.query_start_loc.dtype == torch.int32
        assert int(common.query_start_loc[-1]) == common.num_actual_tokens
        assert common.max_seq_len == int(common.seq_lens.max())
        computed = common.num_computed_tokens_cpu + common.query_start_loc_cpu.diff()
        assert torch.equal(computed, common.seq_lens.cpu())
        return ToyMetadata(
            common.query_start_loc.tolist(), common.seq_lens.tolist(), common.block_table_tensor
        )


class ToyImpl(AttentionImpl):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert args[8] == AttentionType.DECODER

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        size = kv_cache.shape[2]
        kv_cache[slot_mapping // size, 0, slot_mapping % size] = key
        kv_cache[slot_mapping // size, 1, slot_mapping % size] = value

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: ToyMetadata,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert output is not None and layer._k_scale_float == 1.0
        starts = attn_metadata.starts
        for row, length in enumerate(attn_metadata.seq_lens):
            blocks = kv_cache[attn_metadata.block_table[row]]
            keys, values = (blocks[:, part].flatten(0, 1)[:length] for part in (0, 1))
            new = slice(starts[row], starts[row + 1])
            first = length - (starts[row + 1] - starts[row])
            mask = torch.arange(length)[None] <= torch.arange(first, length)[:, None]
            attended = F.scaled_dot_product_attention(
                query[new].transpose(0, 1),
                keys.transpose(0, 1),
                values.transpose(0, 1),
                attn_mask=mask,
                scale=self.scale,
                enable_gqa=True,
            )
            output[new] = attended.transpose(0, 1)
        return output


class ToyBackend(AttentionBackend):
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[ToyImpl]:
        return ToyImpl

    @staticmethod
    def get_builder_cls() -> type[ToyBuilder]:
        return ToyBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        return (num_blocks, 2, block_size, num_kv_heads, head_size)


asked = [AttentionBackendEnum.CUSTOM.is_overridden()]
register_backend(AttentionBackendEnum.CUSTOM, "vllm_style_parts.ToyBackend")
asked.append(AttentionBackendEnum.CUSTOM.is_overridden())
path = AttentionBackendEnum.CUSTOM.get_path()
methods = list(QUANTIZATION_METHODS)
found = get_quantization_config("toy_int8")


def register() -> None:
    """The import did it."""
