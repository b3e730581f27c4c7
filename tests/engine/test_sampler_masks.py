"""What grammars allow, in the sampler: rows with a mask keep to it however tokens are drawn, and
others get what they get without one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hookserve.engine.sampler import Sampler, SamplingMetadata, keep_allowed
from hookserve.engine.sampling_params import SamplingParams
from hookserve.ops.op_function import OpFunction
from hookserve.ops.op_references import REFERENCES
from hookserve.ops.op_table import OpRow

VOCAB = 70
ALLOWED = {0: [3, 31, 32, 64], 2: [69], 3: [0, 1, 2]}
"""By row; 64 and 69 stand in the mask's last word."""


def mask_of(token_ids: list[int], vocab: int = VOCAB) -> np.ndarray:
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[token_ids] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def provided() -> Sampler:
    sampler = Sampler()
    row = OpRow("sampling", "", "mine", "dist:hookserve:me", "wanted")
    sampler.op = OpFunction(row, REFERENCES["sampling"])
    return sampler


@pytest.mark.parametrize("make", [Sampler, provided])
@pytest.mark.parametrize("columns", [VOCAB, 66], ids=["all columns", "fewer columns"])
def test_rows_keep_to_their_masks_and_others_are_as_ever(
    make: Callable[[], Sampler], columns: int
) -> None:
    logits = torch.randn((5, columns), generator=torch.Generator().manual_seed(3))
    allowed = {row: [i for i in ids if i < columns] for row, ids in ALLOWED.items()}
    params = [SamplingParams(temperature=t) for t in (0.0, 0.0, 1.0, 1.0, 1.0)]

    def sample(masks: dict[int, np.ndarray]) -> list[int]:
        generators = [torch.Generator().manual_seed(row) for row in range(5)]
        metadata = SamplingMetadata.from_params(params, generators)
        metadata.masks = masks
        output = make().forward(logits, metadata)
        assert set(output.errors) == {row for row in masks if not allowed[row]} == output.refused
        return output.sampled_token_ids[:, 0].tolist()

    free, held = sample({}), sample({row: mask_of(ids) for row, ids in ALLOWED.items()})
    assert [held[row] for row in (1, 4)] == [free[row] for row in (1, 4)]
    assert held[0] == max(allowed[0], key=lambda token: logits[0, token])
    assert all(held[row] in allowed[row] for row in (2, 3) if allowed[row])


def test_a_mask_is_read_from_the_lowest_bit_of_the_first_word() -> None:
    logits = np.zeros(40, dtype=np.float32)
    keep_allowed(logits, np.array([1 << 5, 1], dtype=np.int32))
    assert np.isfinite(logits).nonzero()[0].tolist() == [5, 32]
