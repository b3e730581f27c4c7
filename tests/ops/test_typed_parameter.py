"""Parameters of quantization methods: each part of a weight finds its place, on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookserve.ops.context import TensorParallelGroup, set_tp_group
from hookserve.ops.linear import (
    ColumnParallelLinear,
    LinearMethodBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from hookserve.ops.parameter import set_weight_attrs
from hookserve.ops.quantization import QuantizationConfig
from hookserve.ops.typed_parameter import (
    BasevLLMParameter,
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    ModelWeightParameter,
    PackedvLLMParameter,
    PerTensorScaleParameter,
    RowvLLMParameter,
)
from hookserve.ops.vocab_parallel_embedding import VocabParallelEmbedding

PACK, GROUP = 4, 8


class Packed(LinearMethodBase):
    """``qweight: [in, out / 4]``, ``scales: [in / 8, out]``, ``g_idx: [in]``, ``part: [parts]``,
    ``whole: [3]``."""

    plain = False

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *sizes: Any,
        weight_loader: Any,
    ) -> None:
        inputs, outputs = input_size_per_partition, sum(output_partition_sizes)
        loading = {"weight_loader": weight_loader}
        shapes = {
            "qweight": (inputs, outputs // PACK),
            "scales": (inputs // GROUP, outputs),
            "g_idx": (inputs,),
            "part": (len(output_partition_sizes),),
            "whole": (3,),
        }
        both = {"input_dim": 0, "output_dim": 1}
        packing = {"packed_dim": 1, "packed_factor": PACK}
        classes: dict[str, tuple[Any, dict[str, Any]]] = {
            "qweight": (PackedvLLMParameter, both | packing),
            "scales": (GroupQuantScaleParameter, both),
            "g_idx": (RowvLLMParameter, {"input_dim": 0}),
            "part": (PerTensorScaleParameter, {}),
            "whole": (BasevLLMParameter, {}),
        }
        for name, (cls, attributes) in classes.items():
            data = torch.full(shapes[name], -1.0)
            if not self.plain:
                layer.register_parameter(name, cls(data=data, **attributes, **loading))
            elif name != "whole":
                parameter = torch.nn.Parameter(data, requires_grad=False)
                if name == "part":
                    attributes = {"needs_scalar_to_array": True}
                set_weight_attrs(parameter, attributes | loading)
                layer.register_parameter(name, parameter)


class PackedPlain(Packed):
    """The same with plain parameters that carry the attributes."""

    plain = True


class Config(QuantizationConfig):
    def __init__(self, method: Any) -> None:
        super().__init__()
        self.method = method

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        return self.method()


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def load(layer: Any, name: str, weight: torch.Tensor, *part: Any) -> None:
    parameter = getattr(layer, name)
    parameter.weight_loader(parameter, weight, *part)


@pytest.fixture(params=[Packed, PackedPlain])
def config(request: pytest.FixtureRequest) -> Config:
    return Config(request.param)


def as_rank(rank: int, ranks: int = 2) -> Any:
    return set_tp_group(TensorParallelGroup(rank, ranks))


@pytest.mark.parametrize("rank", [0, 1])
def test_columns_take_outputs(config: Config, rank: int) -> None:
    with as_rank(rank):
        layer = ColumnParallelLinear(16, 32, bias=False, quant_config=config)
    qweight, scales, index = numbers(16, 8), numbers(2, 32), numbers(16)
    load(layer, "qweight", qweight)
    load(layer, "scales", scales)
    load(layer, "g_idx", index)
    load(layer, "part", torch.tensor(7.0))
    assert torch.equal(layer.qweight, qweight[:, rank * 4 : rank * 4 + 4])
    assert torch.equal(layer.scales, scales[:, rank * 16 : rank * 16 + 16])
    assert torch.equal(layer.g_idx, index)
    assert layer.part.tolist() == [7.0]
    assert (layer.input_size_per_partition, layer.output_size_per_partition) == (16, 16)


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_take_inputs(config: Config, rank: int) -> None:
    with as_rank(rank):
        layer = RowParallelLinear(32, 16, bias=False, quant_config=config)
    qweight, scales, index = numbers(32, 4), numbers(4, 16), numbers(32)
    load(layer, "qweight", qweight)
    load(layer, "scales", scales)
    load(layer, "g_idx", index)
    load(layer, "part", torch.tensor([7.0]))
    assert torch.equal(layer.qweight, qweight[rank * 16 : rank * 16 + 16])
    assert torch.equal(layer.scales, scales[rank * 2 : rank * 2 + 2])
    assert torch.equal(layer.g_idx, index[rank * 16 : rank * 16 + 16])
    assert layer.part.tolist() == [7.0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
def test_merged_columns_take_each_part_into_its_place(
    config: Config, rank: int, fused: bool
) -> None:
    with as_rank(rank):
        layer = MergedColumnParallelLinear(8, [16, 32], bias=False, quant_config=config)
    first, second = numbers(8, 4), numbers(8, 8) + 100
    scale = [numbers(1, 16), numbers(1, 32) + 100]
    if fused:
        load(layer, "qweight", torch.cat((first, second), 1))
        load(layer, "scales", torch.cat(scale, 1))
        load(layer, "part", torch.tensor(5.0))
    else:
        load(layer, "qweight", second, 1)
        load(layer, "qweight", first, 0)
        for part in (0, 1):
            load(layer, "scales", scale[part], part)
            load(layer, "part", torch.tensor(5.0 + part), part)
    wanted = torch.cat((first.chunk(2, 1)[rank], second.chunk(2, 1)[rank]), 1)
    assert torch.equal(layer.qweight, wanted)
    wanted = torch.cat((scale[0].chunk(2, 1)[rank], scale[1].chunk(2, 1)[rank]), 1)
    assert torch.equal(layer.scales, wanted)
    assert layer.part.tolist() == ([5.0, 5.0] if fused else [5.0, 6.0])


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_ranks_share_key_heads_that_are_too_few(config: Config, rank: int) -> None:
    with as_rank(rank, 4):
        layer = QKVParallelLinear(8, 8, 8, 2, bias=False, quant_config=config)
    q, k, v = numbers(8, 16), numbers(8, 4) + 1000, numbers(8, 4) + 2000
    for name, weight in (("q", q), ("k", k), ("v", v)):
        load(layer, "qweight", weight, name)
        load(layer, "part", torch.tensor(float("qkv".index(name))), name)
    parts = (q.chunk(4, 1)[rank], k.chunk(2, 1)[rank // 2], v.chunk(2, 1)[rank // 2])
    assert torch.equal(layer.qweight, torch.cat(parts, 1))
    assert layer.part.tolist() == [0.0, 1.0, 2.0]


def test_what_is_neither_outputs_nor_inputs_is_whole_on_every_rank() -> None:
    with as_rank(1):
        layer = ColumnParallelLinear(8, 16, bias=False, quant_config=Config(Packed))
        alone = ColumnParallelLinear(
            8, 16, bias=False, quant_config=Config(Packed), disable_tp=True
        )
    layer.weight_loader_v2(layer.whole, numbers(3))
    assert layer.whole.tolist() == [0.0, 1.0, 2.0]
    load(alone, "qweight", numbers(8, 4))
    assert torch.equal(alone.qweight, numbers(8, 4)), "the layer is on every rank, so whole"


def test_a_class_that_loads_its_own_way_is_asked() -> None:
    class Negated(ModelWeightParameter):
        def load_merged_column_weight(self, loaded_weight: torch.Tensor, **part: Any) -> None:
            super().load_merged_column_weight(-loaded_weight, **part)

    class Method(LinearMethodBase):
        def create_weights(self, layer: Any, *sizes: Any, weight_loader: Any) -> None:
            data = torch.zeros(sum(sizes[1]), sizes[0])
            weight = Negated(data=data, input_dim=1, output_dim=0, weight_loader=weight_loader)
            layer.register_parameter("weight", weight)

    layer = MergedColumnParallelLinear(2, [1, 1], bias=False, quant_config=Config(Method))
    load(layer, "weight", torch.ones(1, 2), 1)
    assert layer.weight.tolist() == [[0.0, 0.0], [-1.0, -1.0]]


def test_a_weight_of_another_shape_is_refused_by_layer_or_weight(config: Config) -> None:
    layer = ColumnParallelLinear(16, 32, bias=False, quant_config=config, prefix="up")
    with pytest.raises(ValueError, match=r"shape \[16, 9\].*expects \[16, 8\]"):
        load(layer, "qweight", numbers(16, 9))
    merged = MergedColumnParallelLinear(8, [16, 16], bias=False, quant_config=config, prefix="up")
    with pytest.raises(ValueError, match=r"up: a weight of 9 columns does not hold parts of 4, 4"):
        load(merged, "qweight", numbers(8, 9))


def test_an_embedding_needs_a_method_that_looks_rows_up() -> None:
    with pytest.raises(ValueError, match=r"Config gave Packed for the embedding 'embed', and it"):
        VocabParallelEmbedding(64, 8, quant_config=Config(Packed), prefix="embed")


class Rows(LinearMethodBase):
    """``weight: [dim, vocabulary / 4]``: rows of the vocabulary are packed columns."""

    def create_weights(self, layer: Any, *sizes: Any, weight_loader: Any) -> None:
        data = torch.full((sizes[0], sum(sizes[1]) // PACK), -1.0)
        layout = {"input_dim": 0, "output_dim": 1, "packed_dim": 1, "packed_factor": PACK}
        weight = PackedvLLMParameter(data=data, weight_loader=weight_loader, **layout)
        layer.register_parameter("weight", weight)
        scale = ChannelQuantScaleParameter(
            data=torch.full((sum(sizes[1]),), -1.0), output_dim=0, weight_loader=weight_loader
        )
        layer.register_parameter("scale", scale)

    def embedding(self, layer: Any, input_: torch.Tensor) -> torch.Tensor:
        return layer.scale[input_]  # type: ignore[no-any-return]


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_of_a_vocabulary_are_taken_as_they_are_packed(rank: int) -> None:
    with as_rank(rank):
        layer = VocabParallelEmbedding(80, 3, quant_config=Config(Rows), prefix="embed")
    weight, scale = numbers(3, 20), numbers(80)
    load(layer, "weight", weight)
    load(layer, "scale", scale)
    padded = torch.cat((weight, torch.zeros(3, 12)), 1)
    assert torch.equal(layer.weight, padded.chunk(2, 1)[rank])
    assert torch.equal(layer.scale, torch.cat((scale, torch.zeros(48))).chunk(2)[rank])
    with pytest.raises(ValueError, match=r"embed has 84 rows in the checkpoint, .*has 80"):
        load(layer, "weight", numbers(3, 21))
