"""How a checkpoint's tensors find their parameters: name mapping, the strict loader, and the
helpers that model classes build on.

Tensors come from ``weight_iterators``; which file they lie in is not known here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import nn

from hookserve.ops.context import get_tp_group
from hookserve.ops.parameter import copy_weight, set_weight_attrs

__all__ = [
    "AutoWeightsLoader",
    "IntermediateTensors",
    "PPMissingLayer",
    "WeightsMapper",
    "composed_weight_loader",
    "default_weight_loader",
    "extract_layer_index",
    "is_pp_missing_parameter",
    "make_empty_intermediate_tensors_factory",
    "make_layers",
    "maybe_prefix",
    "row_parallel_weight_loader",
    "set_weight_attrs",
    "sharded_weight_loader",
]

Weights = Iterable[tuple[str, torch.Tensor]]
ShardId = int | str | list[int] | list[str]


def default_weight_loader(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    """Copy a whole tensor into a parameter.

    Raises:
        ValueError: if the shapes differ; a single number fits a parameter of one number.
    """
    if param.numel() == 1 and loaded_weight.numel() == 1:
        loaded_weight = loaded_weight.reshape(param.shape)
    copy_weight(param.data, loaded_weight, "the weight")


def sharded_weight_loader(shard_axis: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A loader that takes this rank's part of a tensor, cut along ``shard_axis``."""

    def load(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        size = param.shape[shard_axis]
        start = get_tp_group().rank * size
        if loaded_weight.shape[shard_axis] < start + size:
            raise ValueError(
                f"{list(loaded_weight.shape)} holds no part {get_tp_group().rank} of {size} "
                f"along dimension {shard_axis}"
            )
        default_weight_loader(param, loaded_weight.narrow(shard_axis, start, size))

    return load


def row_parallel_weight_loader(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    """Copy this rank's part along the first dimension; a single number is whole on every rank."""
    if param.dim() == 0:
        default_weight_loader(param, loaded_weight)
    else:
        sharded_weight_loader(0)(param, loaded_weight)


def composed_weight_loader(
    loader: Callable[[torch.Tensor, torch.Tensor], None],
    fn: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A loader that calls ``loader``, then replaces what lies in the parameter by ``fn`` of it."""

    def load(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        loader(param, loaded_weight)
        param.data.copy_(fn(param))

    return load


@dataclass
class WeightsMapper:
    """Renames a checkpoint's weights to the model's, in the order of the fields.

    A target of ``None`` drops the weight. ``orig_to_new_stacked`` maps a part of a name to the
    fused parameter's name and the weight's place in it, ``(new, shard_id)``, or a list of places
    where the weight holds several, one after another; the place travels as the attribute
    ``shard_id`` of the tensor.
    """

    orig_to_new_renaming: list[tuple[str, str]] = field(default_factory=list)
    orig_to_new_regex: Mapping[str, str | None] = field(default_factory=dict)
    orig_to_new_substr: Mapping[str, str | None] = field(default_factory=dict)
    orig_to_new_stacked: Mapping[str, tuple[str, ShardId]] = field(default_factory=dict)
    orig_to_new_prefix: Mapping[str, str | None] = field(default_factory=dict)
    orig_to_new_suffix: Mapping[str, str | None] = field(default_factory=dict)

    def __or__(self, other: WeightsMapper) -> WeightsMapper:
        return WeightsMapper(
            [*self.orig_to_new_renaming, *other.orig_to_new_renaming],
            {**self.orig_to_new_regex, **other.orig_to_new_regex},
            {**self.orig_to_new_substr, **other.orig_to_new_substr},
            {**self.orig_to_new_stacked, **other.orig_to_new_stacked},
            {**self.orig_to_new_prefix, **other.orig_to_new_prefix},
            {**self.orig_to_new_suffix, **other.orig_to_new_suffix},
        )

    def map_name(self, key: str) -> str | None:
        """The model's name for ``key``, or ``None`` if the weight is dropped."""
        return self._map(key)[0]

    def apply(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            mapped, shard_id = self._map(name)
            if mapped is None:
                continue
            if shard_id is not None:
                tensor.shard_id = shard_id  # type: ignore[attr-defined]
            yield mapped, tensor

    def apply_list(self, values: Iterable[str]) -> list[str]:
        mapped = (self.map_name(value) for value in values)
        return [name for name in mapped if name is not None]

    def apply_dict(self, values: Mapping[str, Any]) -> dict[str, Any]:
        mapped = ((self.map_name(key), value) for key, value in values.items())
        return {name: value for name, value in mapped if name is not None}

    def get_rename_mapper(self) -> WeightsMapper:
        """The same without the stacked part."""
        return WeightsMapper(
            list(self.orig_to_new_renaming),
            self.orig_to_new_regex,
            self.orig_to_new_substr,
            {},
            self.orig_to_new_prefix,
            self.orig_to_new_suffix,
        )

    def _map(self, key: str) -> tuple[str | None, ShardId | None]:
        shard_id: ShardId | None = None
        for old, renamed in self.orig_to_new_renaming:
            key = key.replace(old, renamed)
        for pattern, new in self.orig_to_new_regex.items():
            if re.search(pattern, key):
                if new is None:
                    return None, None
                key = re.sub(pattern, new, key)
        for part, new in self.orig_to_new_substr.items():
            if part in key:
                if new is None:
                    return None, None
                key = key.replace(part, new, 1)
        for part, (fused, place) in self.orig_to_new_stacked.items():
            if part in key:
                key, shard_id = key.replace(part, fused, 1), place
                break
        for prefix, new in self.orig_to_new_prefix.items():
            if key.startswith(prefix):
                if new is None:
                    return None, None
                key = new + key.removeprefix(prefix)
        for suffix, new in self.orig_to_new_suffix.items():
            if key.endswith(suffix):
                if new is None:
                    return None, None
                key = key.removesuffix(suffix) + new
        return key, shard_id


class AutoWeightsLoader:
    """Hands each weight to the module that owns it, and refuses those that nobody owns.

    A submodule's own ``load_weights`` is honoured, and may be called several times if the
    checkpoint interleaves modules. Otherwise the parameter's ``weight_loader``, else
    ``default_weight_loader``.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        ignore_unexpected_prefixes: Sequence[str] | None = None,
        ignore_unexpected_suffixes: Sequence[str] | None = None,
    ) -> None:
        self.module = module
        self._prefixes = tuple(ignore_unexpected_prefixes or ())
        self._suffixes = tuple(ignore_unexpected_suffixes or ())

    def load_weights(self, weights: Weights, *, mapper: WeightsMapper | None = None) -> set[str]:
        """Load all weights; returns the names of the parameters that were loaded.

        Raises:
            ValueError: an unexpected name, with what the module does have, or a wrong shape.
        """
        if mapper is not None:
            weights = mapper.apply(weights)
        return set(self._load_module("", self.module, weights))

    def _load_module(self, prefix: str, module: nn.Module, weights: Weights) -> Iterator[str]:
        if isinstance(module, PPMissingLayer):
            for _ in weights:  # another stage's
                pass
            return
        own_load = getattr(module, "load_weights", None)
        if module is not self.module and callable(own_load):
            loaded = own_load(weights)
            if loaded is not None:
                yield from (_join(prefix, name) for name in loaded)
            return
        children = dict(module.named_children())
        tensors = _loadable(module)
        for child, group in _group_by_child(weights):
            name = _join(prefix, child)
            if child in children:
                yield from self._load_module(name, children[child], group)
            elif child in tensors:
                yield from self._load_param(name, tensors[child], group)
            else:
                self._refuse_unless_ignored(name, group, module, prefix)

    def _load_param(self, name: str, param: torch.Tensor, weights: Weights) -> Iterator[str]:
        for rest, tensor in weights:
            if rest:
                raise ValueError(f"unexpected weight {_join(name, rest)!r}: {name!r} is a weight")
            try:
                load_weight(param, tensor)
            except ValueError as error:
                raise ValueError(f"weight {name!r}: {error}") from error
            yield name

    def _refuse_unless_ignored(
        self, name: str, weights: Weights, module: nn.Module, prefix: str
    ) -> None:
        for rest, _ in weights:
            full = _join(name, rest) if rest else name
            if full.startswith(self._prefixes) or full.endswith(self._suffixes):
                continue
            known = [child for child, _ in module.named_children()]
            known += _loadable(module)
            raise ValueError(
                f"unexpected weight {full!r}: {prefix or 'the model'} has "
                f"{', '.join(known) or 'no weights'}"
            )


def _loadable(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's own parameters, and the buffers that a checkpoint of it would hold."""
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters(recurse=False))
    left_out = module._non_persistent_buffers_set
    for name, buffer in module.named_buffers(recurse=False):
        if name not in left_out:
            tensors[name] = buffer
    return tensors


def load_weight(param: torch.Tensor, tensor: torch.Tensor) -> None:
    """Load one tensor by its parameter's loader, into the place that ``shard_id`` names."""
    loader: Callable[..., None] = getattr(param, "weight_loader", default_weight_loader)
    shard_id = getattr(tensor, "shard_id", None)
    if shard_id is None:
        loader(param, tensor)
    else:
        loader(param, tensor, shard_id)


def _group_by_child(weights: Weights) -> Iterator[tuple[str, Iterator[tuple[str, torch.Tensor]]]]:
    split = ((name.partition("."), tensor) for name, tensor in weights)
    for child, group in itertools.groupby(split, key=lambda item: item[0][0]):
        yield child, ((parts[2], tensor) for parts, tensor in group)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


maybe_prefix = _join
"""``prefix.name``, or ``name`` alone where the prefix is empty."""


def extract_layer_index(layer_name: str) -> int:
    """The one number among the parts of a dotted name.

    Raises:
        ValueError: if there is none or more than one.
    """
    numbers = [int(part) for part in layer_name.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise ValueError(f"the layer name {layer_name!r} should hold one number, not {numbers}")
    return numbers[0]


@dataclass
class IntermediateTensors:
    """What one pipeline stage hands to the next, by name."""

    tensors: dict[str, torch.Tensor]

    @overload
    def __getitem__(self, key: str) -> torch.Tensor: ...

    @overload
    def __getitem__(self, key: slice) -> IntermediateTensors: ...

    def __getitem__(self, key: str | slice) -> torch.Tensor | IntermediateTensors:
        """The tensor of a name, or these rows of all of them."""
        if isinstance(key, slice):
            return IntermediateTensors({name: each[key] for name, each in self.tensors.items()})
        return self.tensors[key]

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        self.tensors[key] = value

    def items(self) -> ItemsView[str, torch.Tensor]:
        return self.tensors.items()

    def __len__(self) -> int:
        return len(self.tensors)


class PPMissingLayer(nn.Identity):
    """Stands in a model for a layer of another pipeline stage: gives back what it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument; the first keyword's where there is none."""
        return args[0] if args else next(iter(kwargs.values()))


def is_pp_missing_parameter(name: str, model: nn.Module) -> bool:
    """Whether the parameter of this name belongs to a layer that the model leaves to another
    stage."""
    parts = name.split(".")
    found: Any = model
    for part in parts:
        if isinstance(found, PPMissingLayer):
            return True
        found = getattr(found, part, None)
    return isinstance(found, PPMissingLayer)


def make_layers(
    num_hidden_layers: int, layer_fn: Callable[..., nn.Module], prefix: str
) -> tuple[int, int, nn.ModuleList]:
    """Build the layers of this pipeline stage: ``(start, end, all layers)``.

    There is one stage, so these are all of them. ``layer_fn`` is called with ``prefix=``.
    """
    layers = nn.ModuleList(
        layer_fn(prefix=f"{prefix}.{index}") for index in range(num_hidden_layers)
    )
    return 0, num_hidden_layers, layers


def make_empty_intermediate_tensors_factory(
    keys: Sequence[str], hidden_size: int
) -> Callable[[int, torch.dtype, torch.device], IntermediateTensors]:
    """A function that makes zeros ``[batch, hidden_size]`` under each key."""

    def make(batch_size: int, dtype: torch.dtype, device: torch.device) -> IntermediateTensors:
        shape = (batch_size, hidden_size)
        return IntermediateTensors(
            {key: torch.zeros(shape, dtype=dtype, device=device) for key in keys}
        )

    return make
