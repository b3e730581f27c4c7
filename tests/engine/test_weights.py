"""Name mapping and the strict loader: each weight lands in its place, or the error names it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from hookserve.engine.weights import (
    AutoWeightsLoader,
    WeightsMapper,
    composed_weight_loader,
    default_weight_loader,
    extract_layer_index,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
    set_weight_attrs,
    sharded_weight_loader,
)
from hookserve.ops.context import TensorParallelGroup, set_tp_group


def test_rules_apply_in_their_order() -> None:
    mapper = WeightsMapper(
        orig_to_new_renaming=[("a", "b")],
        orig_to_new_regex={r"b(\d)": r"c\1"},
        orig_to_new_substr={"c1": "d"},
        orig_to_new_stacked={".d": (".e", "q")},
        orig_to_new_prefix={"x.": "y."},
        orig_to_new_suffix={".w": ".weight"},
    )
    assert mapper.map_name("x.a1.w") == "y.e.weight"


def test_none_drops_a_weight_by_each_kind_of_rule() -> None:
    mapper = WeightsMapper(
        orig_to_new_regex={r"^r\d": None},
        orig_to_new_substr={"drop": None},
        orig_to_new_prefix={"head.": None},
        orig_to_new_suffix={".inv": None},
    )
    names = ["r1.w", "x.drop.w", "head.w", "x.inv", "kept.w"]
    assert mapper.apply_list(names) == ["kept.w"]
    assert mapper.apply_dict(dict.fromkeys(names, 1)) == {"kept.w": 1}


def test_a_stacked_weight_carries_its_place() -> None:
    mapper = WeightsMapper(orig_to_new_stacked={".k_proj": (".qkv_proj", "k")})
    weights = [("l.k_proj.weight", torch.zeros(1)), ("l.o.weight", torch.zeros(1))]
    (stacked_name, stacked), (plain_name, plain) = mapper.apply(weights)
    assert (stacked_name, stacked.shard_id) == ("l.qkv_proj.weight", "k")
    assert plain_name == "l.o.weight"
    assert not hasattr(plain, "shard_id")


def test_mappers_merge_and_lose_their_stacked_part_on_request() -> None:
    merged = WeightsMapper(orig_to_new_prefix={"a.": "b."}) | WeightsMapper(
        orig_to_new_stacked={".q": (".qkv", "q")}
    )
    assert merged.map_name("a.q") == "b.qkv"
    assert merged.get_rename_mapper().map_name("a.q") == "b.q"


def test_a_weight_that_holds_several_places_carries_all_of_them() -> None:
    mapper = WeightsMapper(orig_to_new_stacked={".kv_proj": (".qkv_proj", ["k", "v"])})
    ((name, tensor),) = mapper.apply([("l.kv_proj.weight", torch.zeros(1))])
    assert (name, tensor.shard_id) == ("l.qkv_proj.weight", ["k", "v"])  # type: ignore[attr-defined]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.seen: list[str] = []


class OwnLoading(Inner):
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        names = {name for name, _ in weights}
        self.seen += sorted(names)
        return names


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.own = OwnLoading()
        self.scale = nn.Parameter(torch.zeros(3))


def test_weights_reach_parameters_and_own_loaders_even_interleaved() -> None:
    model = Outer()
    weight, bias = torch.randn(2, 2), torch.randn(2)
    loaded = AutoWeightsLoader(model).load_weights(
        [
            ("inner.lin.weight", weight),
            ("own.a.b", torch.zeros(1)),
            ("scale", torch.ones(3)),
            ("own.c", torch.zeros(1)),
            ("inner.lin.bias", bias),
        ]
    )
    assert loaded == {"inner.lin.weight", "own.a.b", "scale", "own.c", "inner.lin.bias"}
    assert torch.equal(model.inner.lin.weight, weight)
    assert torch.equal(model.inner.lin.bias, bias)
    assert model.own.seen == ["a.b", "c"]


@pytest.mark.parametrize("name", ["inner.lin.wait", "inner.nothing.weight", "nothing"])
def test_an_unexpected_weight_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unexpected weight '{name}': .* has ") as caught:
        AutoWeightsLoader(Outer()).load_weights([(name, torch.zeros(1))])
    expected = {"inner.lin.wait": "weight, bias", "inner.nothing.weight": "lin", "nothing": "own"}
    assert expected[name] in str(caught.value)


def test_a_name_below_a_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unexpected weight 'scale\.x'"):
        AutoWeightsLoader(Outer()).load_weights([("scale.x", torch.zeros(3))])


def test_ignored_names_are_left_out() -> None:
    loader = AutoWeightsLoader(
        Outer(), ignore_unexpected_prefixes=["extra."], ignore_unexpected_suffixes=[".inv_freq"]
    )
    names = ["extra.x", "inner.lin.inv_freq", "inner.rot.inv_freq"]
    assert loader.load_weights([(name, torch.zeros(1)) for name in names]) == set()


def test_a_wrong_shape_names_the_weight_and_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"'inner\.lin\.weight'.*\[3, 2\].*expects \[2, 2\]"):
        AutoWeightsLoader(Outer()).load_weights([("inner.lin.weight", torch.zeros(3, 2))])


def test_buffers_of_a_checkpoint_are_loaded_and_others_are_not() -> None:
    model = nn.BatchNorm1d(2)
    model.register_buffer("scratch", torch.zeros(1), persistent=False)
    values = {name: torch.full_like(tensor, 3) for name, tensor in model.state_dict().items()}
    loaded = AutoWeightsLoader(model).load_weights(values.items())
    assert loaded == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert model.running_var is not None
    assert model.running_var.tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match=r"unexpected weight 'scratch': .*running_var"):
        AutoWeightsLoader(model).load_weights([("scratch", torch.zeros(1))])


def test_loaders_that_cut_and_that_convert() -> None:
    param = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
    whole = torch.arange(8.0).view(2, 4)
    with set_tp_group(TensorParallelGroup(1, 2)):
        composed_weight_loader(sharded_weight_loader(1), torch.neg)(param, whole)
        assert torch.equal(param, -whole[:, 2:])
        with pytest.raises(ValueError, match=r"\[2, 3\] holds no part 1 of 2 along dimension 1"):
            sharded_weight_loader(1)(param, whole[:, :3])


def test_the_place_is_handed_to_the_parameters_loader() -> None:
    model = Outer()
    calls: list[object] = []
    set_weight_attrs(model.scale, {"weight_loader": lambda *args: calls.append(args[2:])})
    mapper = WeightsMapper(orig_to_new_stacked={"up": ("scale", 1)})
    AutoWeightsLoader(model).load_weights([("up", torch.zeros(3))], mapper=mapper)
    assert calls == [(1,)]


def test_default_loader_converts_the_dtype_and_takes_a_single_number() -> None:
    param = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    default_weight_loader(param, torch.tensor(1.5))
    assert param.item() == 1.5


def test_an_attribute_that_is_set_is_not_replaced() -> None:
    weight = torch.zeros(1)
    set_weight_attrs(weight, {"output_dim": 0})
    with pytest.raises(ValueError, match="'output_dim'"):
        set_weight_attrs(weight, {"output_dim": 1})


def test_helpers_of_model_classes() -> None:
    prefixes: list[str] = []

    def layer(prefix: str) -> nn.Module:
        prefixes.append(prefix)
        return nn.Identity()

    start, end, layers = make_layers(3, layer, "model.layers")
    assert (start, end, len(layers)) == (0, 3, 3)
    assert prefixes == ["model.layers.0", "model.layers.1", "model.layers.2"]
    assert maybe_prefix("", "a") == "a"
    assert maybe_prefix("m", "a") == "m.a"
    assert extract_layer_index("model.layers.7.attn") == 7
    with pytest.raises(ValueError, match="one number"):
        extract_layer_index("model.layers.7.experts.1")
    made = make_empty_intermediate_tensors_factory(["x"], 5)(2, torch.bfloat16, torch.device("cpu"))
    assert made["x"].shape == (2, 5)
    assert made["x"].dtype == torch.bfloat16
