"""The groups of ranks of this process."""

from __future__ import annotations

from typing import Any

from hookserve.ops.context import TensorParallelGroup as GroupCoordinator
from hookserve.ops.context import get_pp_group, get_tp_group

from . import __surface__ as _PACKAGE

__all__ = [
    "GroupCoordinator",
    "ensure_model_parallel_initialized",
    "get_dp_group",
    "get_pp_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
    "get_tp_group",
    "get_world_group",
    "init_distributed_environment",
    "initialize_model_parallel",
    "model_parallel_is_initialized",
]

_REFUSED = (
    "get_ep_group",
    "init_model_parallel_group",
    "destroy_model_parallel",
    "destroy_distributed_environment",
    "graph_capture",
)
__surface__ = {name: _PACKAGE[name] for name in (*__all__, *_REFUSED)} | {
    "_TP": "refused: the ranks of a model are a context, not a variable; ask get_tp_group()",
}


get_world_group = get_tp_group
get_dp_group = get_pp_group


def get_tensor_model_parallel_rank() -> int:
    return get_tp_group().rank


def get_tensor_model_parallel_world_size() -> int:
    return get_tp_group().world_size


def model_parallel_is_initialized() -> bool:
    return True


def init_distributed_environment(
    world_size: int = -1, rank: int = -1, *args: Any, **how: Any
) -> None:
    """Make sure that the ranks have met as asked.

    Args:
        world_size: -1: as they are, as ``rank``.
        args, how: by what they should meet; they have met by what the platform names.

    Raises:
        RuntimeError: they have not.
    """
    del args, how
    group = get_tp_group()
    if world_size not in (-1, group.world_size) or rank not in (-1, group.rank):
        raise RuntimeError(
            f"rank {rank} of {world_size} was asked for, and this process is rank {group.rank} of "
            f"{group.world_size}; ranks meet when their worker's init_device runs"
        )


def ensure_model_parallel_initialized(
    tensor_model_parallel_size: int, pipeline_model_parallel_size: int = 1, **others: Any
) -> None:
    """Make sure that the model is split as asked.

    Args:
        others: further sizes, which are 1 here.

    Raises:
        RuntimeError: it is not.
    """
    asked = {"tensor_model_parallel_size": tensor_model_parallel_size}
    asked["pipeline_model_parallel_size"] = pipeline_model_parallel_size
    asked |= {name: size for name, size in others.items() if name.endswith("_size")}
    for name, size in asked.items():
        there = get_tp_group().world_size if name == "tensor_model_parallel_size" else 1
        if size not in (None, there):
            raise RuntimeError(f"{name} {size} was asked for, and it is {there}")


initialize_model_parallel = ensure_model_parallel_initialized
