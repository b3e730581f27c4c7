"""How the ranks of one model find each other: ``torch.distributed``, entered and left.

What is sent between them is the layers' business, through ``ops.context.TensorParallelGroup``.
"""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist

from hookserve.ops.context import TensorParallelGroup
from hookserve.ops.device_communicator import DeviceCommunicatorBase

from .errors import ConfigError, WorkerError

WAIT_S = 7 * 24 * 3600.0
"""How long one rank waits for another. One that ended is noticed at once, by its connection and by
the engine; whether a step is late is for the front to say, and a process that was stopped for an
hour goes on where it was."""


def join_ranks(
    backend: str, init_method: str | None, rank: int, world_size: int, device: torch.device
) -> TensorParallelGroup:
    """Meet the other ranks; returns when all are there and have exchanged a number.

    Args:
        backend: ``"gloo"`` or ``"nccl"``, or what else ``torch.distributed`` knows.
        init_method: the same URL for all ranks.
        device: where this rank's tensors are.

    Raises:
        ConfigError: there is nothing to meet by.
        WorkerError: the ranks did not find each other.
    """
    if not backend or init_method is None:
        raise ConfigError(
            f"{world_size} ranks need a way to reach each other, and the platform names no "
            "dist_backend"
        )
    try:
        dist.init_process_group(
            backend,
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=WAIT_S),
        )
        present = torch.ones((), device=device)
        dist.all_reduce(present)
    except (RuntimeError, ValueError) as error:
        message = f"rank {rank} of {world_size} did not find the others by {backend}: {error}"
        raise WorkerError(message) from error
    assert int(present) == world_size, "another number of ranks than were started"
    return TensorParallelGroup(rank, world_size, dist.group.WORLD)


def add_communicator(
    group: TensorParallelGroup,
    cls: type[DeviceCommunicatorBase],
    backend: str,
    device: torch.device,
) -> None:
    """Have the ranks exchange tensors by an object of the class; by the base itself they do as
    they are."""
    if cls is DeviceCommunicatorBase:
        return
    whole = dist.group.WORLD
    assert whole is not None, "the ranks have met"
    cpu_group = whole
    if backend != "gloo":
        cpu_group = dist.new_group(list(range(group.world_size)), backend="gloo")
    group.communicator = cls(cpu_group, device, whole, "tp:0")


def leave_ranks() -> None:
    """Part from the other ranks, in no order."""
    if dist.is_initialized():
        dist.destroy_process_group()
