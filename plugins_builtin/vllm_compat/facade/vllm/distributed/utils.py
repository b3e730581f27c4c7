"""Sizes that are split over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["divide", "get_pp_indices", "split_tensor_along_last_dim"]

__surface__ = {
    "divide": "live: a division that must leave nothing over",
    "split_tensor_along_last_dim": "live: equal parts of a tensor",
    "get_pp_indices": "live: the layers of a stage",
}


def divide(numerator: int, denominator: int) -> int:
    """
    Raises:
        ValueError: something is left over.
    """
    if numerator % denominator:
        raise ValueError(f"{numerator} is not a multiple of {denominator}")
    return numerator // denominator


def split_tensor_along_last_dim(
    tensor: torch.Tensor, num_partitions: int, contiguous_split_chunks: bool = False
) -> Sequence[torch.Tensor]:
    """``num_partitions`` equal parts; views, unless ``contiguous_split_chunks``."""
    parts = torch.split(tensor, divide(tensor.shape[-1], num_partitions), dim=-1)
    return tuple(part.contiguous() for part in parts) if contiguous_split_chunks else parts


def get_pp_indices(num_hidden_layers: int, pp_rank: int, pp_size: int) -> tuple[int, int]:
    """The layers of a stage, from and to: as even as can be; what is left over goes, one each, to
    the stages before the last, which has the head too."""
    each, more = divmod(num_hidden_layers, pp_size)
    first = pp_size - 1 - more
    start = pp_rank * each + max(0, min(pp_rank, pp_size - 1) - first)
    return start, start + each + (first <= pp_rank < pp_size - 1)
