"""``DeviceCommunicatorBase``: how the ranks of one model exchange tensors, as a class that a
platform may name another one for. The names are the ecosystem's.

When something is exchanged is the layers' business, through ``context.TensorParallelGroup``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class DeviceCommunicatorBase:
    """By ``torch.distributed``. The layers call ``all_reduce`` and ``all_gather``; the rest is for
    plugins' own code.

    Attributes:
        rank_in_group, world_size: this rank's place.
        ranks: of the group in the whole, in their order; ``global_rank`` is this one's.
    """

    def __init__(
        self,
        cpu_group: ProcessGroup,
        device: torch.device | None = None,
        device_group: ProcessGroup | None = None,
        unique_name: str = "",
        global_ranks: list[int] | None = None,
        global_world_size: int | None = None,
    ) -> None:
        """
        Args:
            cpu_group: for tensors on a CPU.
            device: where this rank's tensors are.
            device_group: for tensors there.
            unique_name: of the group, such as ``"tp:0"``.
        """
        self.device = device or torch.device("cpu")
        self.cpu_group = cpu_group
        self.device_group = device_group or cpu_group
        self.unique_name = unique_name
        self.rank = dist.get_rank(cpu_group)
        self.world_size = dist.get_world_size(cpu_group)
        self.ranks = global_ranks or dist.get_process_group_ranks(cpu_group)
        self.global_rank = self.ranks[self.rank]
        self.global_world_size = global_world_size or dist.get_world_size()
        self.rank_in_group = self.rank

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks; ``input_`` may be overwritten."""
        dist.all_reduce(input_, group=self.device_group)
        return input_

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors, which have one shape, joined along ``dim`` in their order."""
        parts = [torch.empty_like(input_) for _ in range(self.world_size)]
        dist.all_gather(parts, input_.contiguous(), group=self.device_group)
        return torch.cat(parts, dim=dim)

    def all_gatherv(
        self, input_: torch.Tensor, dim: int = 0, sizes: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The same of tensors that differ along the first dimension.

        Args:
            dim: 0.
            sizes: the ranks' lengths; ``None``: all have this one's.
        """
        if dim != 0:
            raise ValueError(f"all_gatherv joins along dim 0, not {dim}")
        if sizes is None:
            return self.all_gather(input_, dim=0)
        longest = max(sizes)
        padded = input_.new_zeros((longest, *input_.shape[1:]))
        padded[: len(input_)] = input_
        parts = torch.split(self.all_gather(padded, dim=0), longest)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part along ``dim`` of the sum over the ranks."""
        if input_.shape[dim] % self.world_size:
            raise ValueError(
                f"reduce_scatter: {input_.shape[dim]} along dim {dim} is not divisible by "
                f"{self.world_size} ranks"
            )
        return self.all_reduce(input_.clone()).chunk(self.world_size, dim)[self.rank].contiguous()

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The same where the parts differ.

        Args:
            sizes: of each rank's part; ``None``: all have one size.
        """
        if sizes is None:
            return self.reduce_scatter(input_, dim)
        parts = torch.split(self.all_reduce(input_.clone()), list(sizes), dim)
        return parts[self.rank].contiguous()

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """The joined tensors on rank ``dst`` of the group, ``None`` on the others."""
        parts = None
        if self.rank == dst:
            parts = [torch.empty_like(input_) for _ in range(self.world_size)]
        dist.gather(input_.contiguous(), parts, dst=self.ranks[dst], group=self.device_group)
        return None if parts is None else torch.cat(parts, dim=dim)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Rank ``src``'s tensor, written into this one."""
        dist.broadcast(tensor, self.ranks[src], self.device_group)
        return tensor

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """To rank ``dst`` of the group; ``None``: the next one."""
        to = (self.rank + 1) % self.world_size if dst is None else dst
        dist.send(tensor, self.ranks[to], self.device_group)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """From rank ``src`` of the group; ``None``: the one before."""
        tensor = torch.empty(size, dtype=dtype, device=self.device)
        by = (self.rank - 1) % self.world_size if src is None else src
        dist.recv(tensor, self.ranks[by], self.device_group)
        return tensor

    def destroy(self) -> None:
        """Let go of what was made besides the groups; called once, before the ranks part."""

    def prepare_communication_buffer_for_model(self, model: Any) -> None:
        """Called with the loaded model; the base needs no buffers."""
