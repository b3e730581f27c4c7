"""The groups of ranks of this process."""

from __future__ import annotations

from typing import Any

from hookserve.ops.context import TensorParallelGroup as GroupCoordinator
from hookserve.ops.context import get_pp_group, get_tp_group

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

__surface__ = {
    "get_tensor_model_parallel_rank": "live: this rank among those that share the model",
    "get_tensor_model_parallel_world_size": "live: how many ranks share the model",
    "get_tp_group": (
        "live: the ranks that share the model; its all_reduce may overwrite what it is given"
    ),
    "get_pp_group": "live: the stages of the pipeline, of which there is one",
    "get_world_group": "live: all ranks, which share the model",
    "get_dp_group": "live: the copies of the model, of which there is one",
    "GroupCoordinator": (
        "live: the class of these groups; made by the worker alone. It has rank, rank_in_group, "
        "ranks, world_size, is_first_rank, is_last_rank, device_group, all_reduce and all_gather, "
        "and nothing else: torch.distributed does the rest, by device_group"
    ),
    "model_parallel_is_initialized": (
        "live: true, as a worker's ranks have met before its model is built"
    ),
    "init_distributed_environment": (
        "live: says whether the ranks that met are those that are asked for; they meet by "
        "themselves"
    ),
    "ensure_model_parallel_initialized": "live: says whether the ranks that met are split as asked",
    "initialize_model_parallel": "live: the same",
    "get_ep_group": "refused: no architecture with experts is served",
    "init_model_parallel_group": "refused: one group of ranks is made, by the worker",
    "destroy_model_parallel": "refused: the worker parts from the others at its end",
    "destroy_distributed_environment": "refused: the worker parts from the others at its end",
    "graph_capture": "refused: no graphs are captured",
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
