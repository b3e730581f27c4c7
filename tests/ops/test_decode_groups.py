"""Gathered copies that are kept from step to step give what gathering anew gives."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from hookserve.ops.attention import Attention
from hookserve.ops.context import (
    AttentionMetadata,
    ForwardContext,
    set_forward_context,
    set_model_context,
)
from hookserve.ops.decode_groups import DecodeMemory

HEADS, KV_HEADS, SIZE, BLOCK, NUM_BLOCKS = 6, 2, 8, 4, 2600


@dataclass
class Decoding:
    """A sequence whose first ``length`` tokens are in the cache."""

    number: int
    blocks: list[int]
    length: int = 0


@dataclass
class Pair:
    """The same steps through two layers: one that keeps copies, and one that does not."""

    dtype: torch.dtype
    kept: Attention = field(init=False)
    plain: Attention = field(init=False)
    memory: DecodeMemory = field(default_factory=DecodeMemory)
    num_gathers: int = 0

    def __post_init__(self) -> None:
        self.layers: dict[str, Any] = {}
        with set_model_context(
            static_forward_context=self.layers, dtype=self.dtype, block_size=BLOCK
        ):
            self.kept = Attention(HEADS, SIZE, 0.3, KV_HEADS, prefix="kept")
            self.plain = Attention(HEADS, SIZE, 0.3, KV_HEADS, prefix="plain")
        for layer in (self.kept, self.plain):
            shape = layer.kv_cache_shape(NUM_BLOCKS, BLOCK)
            layer.bind_kv_cache(torch.zeros(shape, dtype=self.dtype))
        gather = self.kept.impl._gather

        def count(*args: Any) -> None:
            self.num_gathers += 1
            gather(*args)

        self.kept.impl._gather = count  # type: ignore[method-assign]

    def step(self, decodes: list[Decoding], prompt: Decoding | None = None) -> None:
        """One token of each of ``decodes``, all 5 of ``prompt``; the layers must agree."""
        counts = [1] * len(decodes) + [5] * (prompt is not None)
        rows = [*decodes, prompt] if prompt else decodes
        slots, starts = [], [0]
        tables = torch.zeros(len(rows), max(len(row.blocks) for row in rows), dtype=torch.int64)
        for row, count in zip(rows, counts, strict=True):
            tables[len(starts) - 1, : len(row.blocks)] = torch.tensor(row.blocks)
            for position in range(row.length, row.length + count):
                slots.append(row.blocks[position // BLOCK] * BLOCK + position % BLOCK)
            row.length += count
            starts.append(len(slots))
        q = torch.randn(len(slots), HEADS * SIZE).to(self.dtype)
        k, v = (torch.randn(len(slots), KV_HEADS * SIZE).to(self.dtype) for _ in "kv")
        outputs = []
        for layer, memory in ((self.kept, self.memory), (self.plain, None)):
            metadata = AttentionMetadata(
                num_reqs=len(rows),
                num_tokens=len(slots),
                num_decode_reqs=len(decodes),
                query_start_loc=starts,
                seq_lens=[row.length for row in rows],
                block_tables=tables,
                slot_mapping=torch.tensor(slots),
                block_size=BLOCK,
                sequences=tuple(row.number for row in decodes),
                decode_memory=memory,
            )
            with torch.inference_mode(), set_forward_context(ForwardContext(metadata, self.layers)):
                outputs.append(layer(q, k, v))
        tolerance = 1e-5 if self.dtype is torch.float32 else 2e-2
        torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=tolerance)


def new_sequence(number: int, max_blocks: int, length: int = 0) -> Decoding:
    first = 1 + number % 7 * max_blocks
    return Decoding(number, list(range(first, first + max_blocks)), length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_follow_sequences_that_come_grow_and_go(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    pair = Pair(dtype)
    live: list[Decoding] = []
    number = 0
    for _ in range(120):
        if live and draw.random() < 0.1:
            live.pop(draw.randrange(len(live)))
        prompt = None
        if len(live) < 4 and draw.random() < 0.3:
            taken = {sequence.number % 7 for sequence in live}
            number += 1
            while number % 7 in taken:
                number += 1
            prompt = new_sequence(number, 80)
        if live or prompt:
            pair.step(live, prompt)
        if prompt:
            live.append(prompt)
        live = [sequence for sequence in live if sequence.length < 300]
    assert 0 < pair.num_gathers < 120


def test_steady_sequences_are_gathered_once_in_a_while() -> None:
    pair = Pair(torch.float32)
    pair.step([], first := new_sequence(1, 40))
    pair.step([], second := new_sequence(2, 40))
    for _ in range(8):  # room for so many is made
        pair.step([first, second])
    assert pair.num_gathers == 1
    for _ in range(8):
        pair.step([first, second])
    assert pair.num_gathers == 2


def test_blocks_that_pass_to_another_sequence_of_the_same_length_are_gathered_anew() -> None:
    pair = Pair(torch.float32)
    pair.step([], first := new_sequence(1, 40))
    pair.step([], beside := new_sequence(2, 40))
    pair.step([first, beside])
    heir = Decoding(3, first.blocks)
    pair.step([], heir)
    heir.length = first.length
    pair.step([heir, beside])


def test_sequences_of_very_different_lengths_stay_in_groups_of_their_own() -> None:
    pair = Pair(torch.float32)
    lengths = [1330, 7, 1331, 9, 8]
    rows = [new_sequence(number, 350, length) for number, length in enumerate(lengths)]
    for _ in range(6):
        pair.step(rows)
    kept = pair.kept.impl._copies
    assert kept is not None and len(kept.parts) == 2


def test_no_more_is_kept_than_a_part_of_the_cache() -> None:
    pair = Pair(torch.float32)
    everything = [new_sequence(number, 350, 1330) for number in range(5)]
    pair.step(everything)
    assert pair.kept.impl._copies is None
