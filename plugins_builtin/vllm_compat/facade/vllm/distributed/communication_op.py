"""What the ranks that share a model send each other."""

from __future__ import annotations

import torch

from .parallel_state import get_tp_group
from .utils import divide

__all__ = [
    "tensor_model_parallel_all_gather",
    "tensor_model_parallel_all_reduce",
    "tensor_model_parallel_gather",
    "tensor_model_parallel_reduce_scatter",
]

__surface__ = {
    "tensor_model_parallel_all_reduce": "live: the sum over the ranks, in a tensor of its own",
    "tensor_model_parallel_all_gather": "live: the ranks' parts joined",
    "tensor_model_parallel_gather": "live: the ranks' parts joined, on one of them",
    "tensor_model_parallel_reduce_scatter": "live: this rank's part of the sum",
    "broadcast_tensor_dict": "refused: every worker is told each step by the engine",
}


def tensor_model_parallel_all_reduce(input_: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks; ``input_`` stays as it is."""
    group = get_tp_group()
    return input_ if group.world_size == 1 else group.all_reduce(input_.clone())


def tensor_model_parallel_all_gather(input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The ranks' tensors joined along a dimension, in the order of the ranks."""
    return get_tp_group().all_gather(input_, dim)


def tensor_model_parallel_gather(
    input_: torch.Tensor, dst: int = 0, dim: int = -1
) -> torch.Tensor | None:
    """The same for rank ``dst``; ``None`` for the others."""
    joined = tensor_model_parallel_all_gather(input_, dim)
    return joined if get_tp_group().rank == dst else None


def tensor_model_parallel_reduce_scatter(input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """This rank's part, along a dimension, of the sum over the ranks.

    Raises:
        ValueError: the dimension is not divided by the ranks evenly.
    """
    group = get_tp_group()
    size = divide(input_.shape[dim], group.world_size)
    return tensor_model_parallel_all_reduce(input_).narrow(dim, group.rank * size, size)
