"""Tensor-parallel ranks as threads of one process, so that layers are tested without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from hookserve.ops.context import TensorParallelGroup, set_tp_group

T = TypeVar("T")

TIMEOUT_S = 30.0


class Meeting:
    """Where the ranks' tensors lie while all of them look."""

    def __init__(self, world_size: int) -> None:
        self.tensors: list[torch.Tensor] = [torch.empty(0)] * world_size
        self.barrier = threading.Barrier(world_size, timeout=TIMEOUT_S)

    def show(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        """Copies of what all ranks show at this time."""
        self.tensors[rank] = x
        self.barrier.wait()
        seen = [tensor.clone() for tensor in self.tensors]
        self.barrier.wait()
        return seen


class ThreadGroup(TensorParallelGroup):
    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, len(meeting.tensors))
        self.meeting = meeting

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.num_all_reduces += 1
        return x.copy_(torch.stack(self.meeting.show(self.rank, x)).sum(0))

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        self.num_all_gathers += 1
        return torch.cat(self.meeting.show(self.rank, x), dim=dim)


def run_ranks(world_size: int, work: Callable[[TensorParallelGroup], T]) -> list[T]:
    """Run ``work`` as each rank at once; what each returned. Layers made within are that rank's."""
    meeting = Meeting(world_size)

    def run(rank: int) -> T:
        group = ThreadGroup(rank, meeting)
        try:
            with set_tp_group(group):
                return work(group)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(run, rank) for rank in range(world_size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]
