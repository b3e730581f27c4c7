"""Steps of attention layers that are called by themselves, without an engine."""

from __future__ import annotations

import torch

from hookserve.ops.context import AttentionMetadata


def make_step(spans: list[tuple[int, int]], block: int) -> AttentionMetadata:
    """One step over positions ``[start, end)`` of each sequence, those that decode first. With
    three of them each has every third block, 20 in all."""
    tables = torch.arange(20)[None] * len(spans) + torch.arange(len(spans))[:, None] + 1
    starts, slots = [0], []
    for row, (start, end) in enumerate(spans):
        slots += [int(tables[row, at // block]) * block + at % block for at in range(start, end)]
        starts.append(len(slots))
    return AttentionMetadata(
        num_reqs=len(spans),
        num_tokens=len(slots),
        num_decode_reqs=sum(end - start == 1 and start > 0 for start, end in spans),
        query_start_loc=starts,
        seq_lens=[end for _, end in spans],
        block_tables=tables,
        slot_mapping=torch.tensor(slots),
        block_size=block,
    )
