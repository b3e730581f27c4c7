"""Which decoding sequences attend together, and where their keys and values lie for it.

Sequences with one new token are padded to the longest of their group and attend in one call over
keys and values that stand in one piece, gathered from the paged cache. A gathered copy stays good
for as long as the same sequences decode on: then each step only adds its own tokens to it
(``KeptGroups``). What a layer does with a group is ``attention``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .context import AttentionMetadata

_GROUP_OVERHEAD_BLOCKS = 80
# One more group costs about as much time as gathering and attending to 80 blocks of padding
# (measured on whole steps of 4, 8 and 16 sequences of 16 to 868 tokens, 3 heads of 64; 40 to 160
# are within noise).
_KEPT_GROUP_OVERHEAD_BLOCKS = 320
# The same for groups that are kept, whose padding is not gathered each time (6, 11 and 16
# sequences of 32 to 900 tokens: 0.94 to 0.98 of the time that 80 takes; 640 is within noise).
_SPARE_BLOCKS = 2
# Room to grow for groups that are kept: less of it, and they are gathered anew more often; more,
# and every step attends to more padding.


@dataclass(slots=True)
class DecodeGroup:
    """Sequences whose one new token attends in one call."""

    rows: torch.Tensor | None
    """``[n]``: their rows in the batch; ``None``: all decode rows in order."""
    num_rows: int
    num_blocks: int
    """Gathered of each row."""
    blocks: torch.Tensor
    """``[n, num_blocks]``: which; behind a row's end any."""
    starts: list[int]
    """Length n: the first position that a row sees, counted from its first gathered block."""
    ends: list[int]
    """Length n: the position behind the last one that a row sees."""
    mask: torch.Tensor | None = None
    """``[n, 1, 1, positions]``, 0 or -inf; ``None`` for a single sequence."""

    @property
    def seen(self) -> slice:
        """Of a single sequence, the positions that it sees."""
        return slice(self.starts[0], self.ends[0])

    def set_mask(self, block_size: int, dtype: torch.dtype) -> None:
        """Hide what lies outside ``[start, end)`` of each row."""
        if self.num_rows == 1:
            return
        device = self.blocks.device
        at = torch.arange(self.num_blocks * block_size, device=device)
        hidden = at >= torch.tensor(self.ends, device=device)[:, None]
        if any(self.starts):
            hidden |= at < torch.tensor(self.starts, device=device)[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        self.mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None]


def make_groups(
    metadata: AttentionMetadata,
    seen_from: Callable[[int], int],
    limit: int | None,
    dtype: torch.dtype,
    *,
    overhead_blocks: int = _GROUP_OVERHEAD_BLOCKS,
    spare_blocks: int = 0,
) -> list[DecodeGroup]:
    """Groups of the step's decoding sequences.

    Args:
        seen_from: by a sequence's length, the first position that its last token sees.
        limit: blocks that a group may gather; ``None``: any number.
        overhead_blocks: padding that costs as much as one more group.
        spare_blocks: room behind the longest row of a group.
    """
    size = metadata.block_size
    lengths = metadata.seq_lens[: metadata.num_decode_reqs]
    num_blocks = [-(-length // size) - seen_from(length) // size for length in lengths]
    split = split_by_length(num_blocks, limit, overhead_blocks)
    groups = []
    for rows in split:
        is_only = len(split) == 1
        rows = sorted(rows) if is_only else rows
        index = None if is_only else torch.tensor(rows, device=metadata.block_tables.device)
        tables = metadata.block_tables[: len(rows)] if is_only else metadata.block_tables[index]
        firsts = [seen_from(lengths[row]) // size for row in rows]
        blocks = _seen_blocks(tables, firsts, max(num_blocks[row] for row in rows))
        if spare_blocks:
            blocks = torch.nn.functional.pad(blocks, (0, spare_blocks))
        # Positions count from the first gathered block on.
        starts = [seen_from(lengths[row]) % size for row in rows]
        ends = [lengths[row] - first * size for row, first in zip(rows, firsts, strict=True)]
        group = DecodeGroup(index, len(rows), blocks.shape[1], blocks, starts, ends)
        group.set_mask(size, dtype)
        groups.append(group)
    return groups


def split_by_length(
    num_blocks: list[int], limit: int | None, overhead_blocks: int
) -> list[list[int]]:
    """Split rows into groups that are padded to their longest member.

    Rows are taken from the longest on; a group ends when it would be padded by more than
    ``overhead_blocks``, or when it would gather more than ``limit`` blocks.
    """
    order = sorted(range(len(num_blocks)), key=lambda row: -num_blocks[row])
    groups: list[list[int]] = []
    longest = waste = 0
    for row in order:
        waste += longest - num_blocks[row]
        is_full = bool(groups) and limit is not None and longest * (len(groups[-1]) + 1) > limit
        if not groups or waste > overhead_blocks or is_full:
            groups.append([])
            longest, waste = num_blocks[row], 0
        groups[-1].append(row)
    return groups


def _seen_blocks(tables: torch.Tensor, firsts: list[int], count: int) -> torch.Tensor:
    """``[n, count]``: of each row of ``tables`` the blocks from ``first`` on; what lies behind a
    row's end is any block."""
    if not any(firsts):
        return tables[:, :count]
    device = tables.device
    wanted = torch.tensor(firsts, device=device)[:, None] + torch.arange(count, device=device)
    return tables.gather(1, wanted.clamp_(max=tables.shape[1] - 1))


@dataclass(slots=True, eq=False)
class KeptGroups:
    """Groups whose gathered copies serve the next steps too. Each layer has copies of its own, in
    one buffer: group after group, ``[n, kv_heads, positions, head_size]`` each."""

    sequences: tuple[int, ...]
    """Of each decode row, the sequence that it held when the groups were made."""
    lengths: list[int]
    """Their tokens by now."""
    groups: list[DecodeGroup]
    block_size: int
    kv_heads: int
    dtype: torch.dtype
    step: int = 0
    """How many steps these groups have served before."""
    num_rows: int = 0
    """Of the buffer, as ``[rows, head_size]``."""
    new_rows: torch.Tensor = field(init=False)
    """``[decode rows * kv_heads]``: where in the buffer the step's tokens go."""
    _first_rows: list[int] = field(init=False)
    """By decode row, its first one in the buffer."""
    _positions: list[int] = field(init=False)
    """By decode row, how many positions its group has."""

    def __post_init__(self) -> None:
        count = len(self.sequences)
        self._first_rows, self._positions = [0] * count, [0] * count
        for group in self.groups:
            positions = group.num_blocks * self.block_size
            members = range(count) if group.rows is None else group.rows.tolist()
            for row in members:
                self._first_rows[row], self._positions[row] = self.num_rows, positions
                self.num_rows += self.kv_heads * positions

    def advance(self, sequences: tuple[int, ...], lengths: list[int]) -> bool:
        """Follow the sequences by one token each; false if these groups do not serve the step:
        others decode, or one has no room."""
        if sequences != self.sequences:
            return False
        if any(now != old + 1 for now, old in zip(lengths, self.lengths, strict=True)):
            return False
        if any(now > room for now, room in zip(lengths, self._positions, strict=True)):
            return False
        self.lengths = lengths
        self.step += 1
        for group in self.groups:
            group.ends = [end + 1 for end in group.ends]
            group.set_mask(self.block_size, self.dtype)
        first = torch.tensor(self._first_rows) + torch.tensor(lengths) - 1
        heads = torch.arange(self.kv_heads) * torch.tensor(self._positions)[:, None]
        self.new_rows = (first[:, None] + heads).view(-1)
        return True


class DecodeMemory:
    """What of decoding lasts from step to step; the model runner keeps one for its model."""

    def __init__(self) -> None:
        self._kept: dict[Any, KeptGroups] = {}

    def find(
        self, name: Any, metadata: AttentionMetadata, kv_heads: int, dtype: torch.dtype, limit: int
    ) -> KeptGroups | None:
        """Groups for the step, those of the last step if they serve; ``None`` where their copies
        would be larger than ``limit`` rows of the buffer.

        Args:
            name: tells the groups of different kinds of layers apart.
        """
        lengths = metadata.seq_lens[: metadata.num_decode_reqs]
        kept = self._kept.get(name)
        if kept is not None and kept.advance(metadata.sequences, lengths):
            return kept
        groups = make_groups(
            metadata,
            lambda length: 0,
            None,
            dtype,
            overhead_blocks=_KEPT_GROUP_OVERHEAD_BLOCKS,
            spare_blocks=_SPARE_BLOCKS,
        )
        kept = KeptGroups(metadata.sequences, lengths, groups, metadata.block_size, kv_heads, dtype)
        if kept.num_rows > limit:
            self._kept.pop(name, None)
            return None
        self._kept[name] = kept
        return kept
