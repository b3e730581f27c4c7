"""Parameters that know how they lie: along which dimension the outputs, the inputs and packed
elements are; and how a parameter, of these classes or plain with the same attributes, takes its
rank's part of a weight.

The names are the ecosystem's. Which part a layer wants of which weight is ``linear``'s business;
what the numbers mean, the quantization method's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from .context import get_tp_group
from .parameter import copy_weight

Loader = Callable[..., None]


class OutputPart(NamedTuple):
    """Outputs of a layer that one weight of the checkpoint holds."""

    place: int
    """Among the parts of a merged layer."""
    start: int
    """The first output of it in this rank's parameter."""
    size: int
    """Outputs of it that this rank has."""
    rank: int
    """Which part of the weight is this rank's."""
    ranks: int
    """Into how many it is cut."""
    shard_id: int | str | None = None
    """``None``: the layer is not merged of several."""
    replicas: int = 1
    """Ranks that share one key head."""


class BasevLLMParameter(nn.Parameter):
    """Base: a weight that is the same on every rank."""

    weight_loader: Loader

    def __new__(cls, data: torch.Tensor | None = None, **attributes: Any) -> BasevLLMParameter:
        del attributes
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, weight_loader: Loader) -> None:
        """
        Args:
            weight_loader: called with the parameter and the weight, and in merged layers with the
                part's name; ``create_weights`` is given it.
        """
        self.weight_loader = weight_loader
        group = get_tp_group()
        self.tp_rank, self.tp_size = group.rank, group.world_size

    def load_column_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """Take this rank's part of a weight, by its outputs."""
        fill_outputs(self, loaded_weight, None, self.tp_rank, self.tp_size, "the weight")

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """Take this rank's part of a weight, by its inputs."""
        fill_inputs(self, loaded_weight, self.tp_rank, self.tp_size, "the weight")

    def load_merged_column_weight(self, loaded_weight: torch.Tensor, **part: Any) -> None:
        """Take this rank's part of a weight that is one of several in a layer.

        Args:
            part: ``shard_id``, its place; ``shard_offset`` and ``shard_size``, in outputs of this
                rank.
        """
        given = _part(part, int(part["shard_id"]), self.tp_rank, self.tp_size)
        fill_outputs(self, loaded_weight, given, self.tp_rank, self.tp_size, "the weight")

    def load_qkv_weight(self, loaded_weight: torch.Tensor, **part: Any) -> None:
        """The same for queries, keys or values.

        Args:
            part: as before, with ``shard_id`` in ``"q"``, ``"k"``, ``"v"``, and ``num_heads``, the
                number of ranks that share one key head.
        """
        name, rank, ranks = part["shard_id"], self.tp_rank, self.tp_size
        if name != "q":
            rank, ranks = rank // part["num_heads"], ranks // part["num_heads"]
        given = _part(part, "qkv".index(name), rank, ranks)
        fill_outputs(self, loaded_weight, given, rank, ranks, "the weight")


class _Outputs(BasevLLMParameter):
    def __init__(self, *, output_dim: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.output_dim = output_dim


class RowvLLMParameter(BasevLLMParameter):
    """Split by its inputs alone."""

    def __init__(self, *, input_dim: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.input_dim = input_dim


class ModelWeightParameter(_Outputs, RowvLLMParameter):
    """A weight: split by outputs or by inputs, as the layer is."""


class GroupQuantScaleParameter(_Outputs, RowvLLMParameter):
    """A scale of each output for each group of inputs."""


class ChannelQuantScaleParameter(_Outputs):
    """A scale of each output."""


class PerTensorScaleParameter(BasevLLMParameter):
    """One scale for each of the weights that are merged in a layer: ``[parts]``."""

    needs_scalar_to_array = True


class PackedColumnParameter(_Outputs):
    """Several elements in one along ``packed_dim``; split by outputs alone."""

    def __init__(self, *, packed_factor: int, packed_dim: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.packed_factor, self.packed_dim = packed_factor, packed_dim


class PackedvLLMParameter(ModelWeightParameter):
    """A weight with several elements in one along ``packed_dim``."""

    def __init__(self, *, packed_factor: int, packed_dim: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.packed_factor, self.packed_dim = packed_factor, packed_dim


def take_outputs(
    param: torch.Tensor, loaded: torch.Tensor, part: OutputPart, what: str, *, whole: bool = False
) -> None:
    """Let a parameter of a layer that is split by outputs take its part of a weight.

    Args:
        whole: the part is all of the layer.

    Raises:
        ValueError: the weight has another shape than the layer's.
    """
    if not isinstance(param, BasevLLMParameter):
        fill_outputs(param, loaded, None if whole else part, part.rank, part.ranks, what)
        return
    given = {"shard_id": part.shard_id, "shard_offset": part.start, "shard_size": part.size}
    if whole:
        param.load_column_parallel_weight(loaded)
    elif isinstance(part.shard_id, str):
        param.load_qkv_weight(loaded, num_heads=part.replicas, **given)
    else:
        param.load_merged_column_weight(loaded, **given)


def take_inputs(
    param: torch.Tensor, loaded: torch.Tensor, rank: int, ranks: int, what: str
) -> None:
    """The same for a layer that is split by inputs."""
    if isinstance(param, BasevLLMParameter):
        param.load_row_parallel_weight(loaded)
    else:
        fill_inputs(param, loaded, rank, ranks, what)


def fill_outputs(
    param: torch.Tensor,
    loaded: torch.Tensor,
    part: OutputPart | None,
    rank: int,
    ranks: int,
    what: str,
) -> None:
    """Copy part ``rank`` of ``ranks`` of a weight's outputs into the parameter.

    Args:
        part: where in the parameter; ``None``: all of it.
    """
    target, dim = param.data, output_dim(param)
    if getattr(param, "needs_scalar_to_array", False):
        index = 0 if part is None else part.place
        copy_weight(target.view(-1)[index], loaded.reshape(-1).squeeze(0), what)
        return
    if dim is None:
        copy_weight(target, loaded, what)
        return
    if part is not None:
        factor = pack_factor(param, dim)
        target = target.narrow(dim, part.start // factor, part.size // factor)
    copy_weight(target, narrow_part(loaded, dim, rank, ranks), what)


def fill_inputs(
    param: torch.Tensor, loaded: torch.Tensor, rank: int, ranks: int, what: str
) -> None:
    """Copy part ``rank`` of ``ranks`` of a weight's inputs into the parameter; what has no inputs,
    a bias for one, is whole on every rank."""
    if getattr(param, "needs_scalar_to_array", False):
        copy_weight(param.data.view(-1)[0], loaded.reshape(-1).squeeze(0), what)
        return
    dim: int | None = getattr(param, "input_dim", None)
    if dim is None and not hasattr(param, "output_dim") and loaded.dim() > 1:
        dim = 1
    if dim is not None:
        loaded = narrow_part(loaded, dim, rank, ranks)
    copy_weight(param.data, loaded, what)


def split_outputs(
    param: torch.Tensor, loaded: torch.Tensor, sizes: Sequence[int], what: str
) -> Sequence[torch.Tensor]:
    """The parts of a weight in which several lie one after another.

    Args:
        sizes: outputs of each.

    Raises:
        ValueError: it has another number of outputs.
    """
    if getattr(param, "needs_scalar_to_array", False):
        return list(loaded.reshape(-1).expand(len(sizes)))
    dim = output_dim(param)
    if dim is None:
        return [loaded] * len(sizes)
    factor = pack_factor(param, dim)
    if loaded.shape[dim] * factor != sum(sizes):
        raise ValueError(
            f"{what}: a weight of {loaded.shape[dim]} {'rows' if dim == 0 else 'columns'} does not "
            f"hold parts of {', '.join(str(size // factor) for size in sizes)}"
        )
    return torch.split(loaded, [size // factor for size in sizes], dim)


def output_dim(param: torch.Tensor) -> int | None:
    """The dimension of the outputs, the first where nobody says; ``None``: there are none."""
    if hasattr(param, "output_dim"):
        found: int | None = param.output_dim
        return found
    is_typed = isinstance(param, BasevLLMParameter) or hasattr(param, "input_dim")
    return None if is_typed or not param.dim() else 0


def pack_factor(param: torch.Tensor, dim: int) -> int:
    """Outputs in one element along ``dim``."""
    if getattr(param, "packed_dim", None) != dim:
        return 1
    stated: Any = getattr(param, "packed_factor", None) or getattr(param, "pack_factor", 1)
    return int(stated)


def narrow_part(tensor: torch.Tensor, dim: int, part: int, parts: int) -> torch.Tensor:
    """A view of one of ``parts`` equal parts.

    Raises:
        ValueError: there are none.
    """
    size = tensor.shape[dim]
    if size % parts:
        of = "rows" if dim == 0 else "columns"
        raise ValueError(f"a weight: {size} {of} cannot be split evenly over {parts} ranks")
    return tensor.narrow(dim, part * (size // parts), size // parts)


def _part(given: dict[str, Any], index: int, rank: int, ranks: int) -> OutputPart:
    return OutputPart(index, given["shard_offset"], given["shard_size"], rank, ranks)
