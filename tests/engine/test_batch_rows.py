"""``BatchRows``: whoever applies the updates as documented always knows who is in which row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookserve.engine.batch_rows import BatchRows, compare_rows
from hookserve.engine.logits_processor import BatchUpdate, MoveDirectionality
from hookserve.engine.processor_set import ProcessedRequest
from hookserve.engine.sampling_params import SamplingParams
from processors import apply_update

REQUESTS = [ProcessedRequest(SamplingParams(), [number]) for number in range(9)]
ROWS = st.lists(st.sampled_from(range(9)), unique=True, max_size=7)


def added_first(rows: dict[int, Any], update: BatchUpdate) -> None:
    """The other order in which the ecosystem's own helper takes them."""
    for row, *told in update.added:
        rows[row] = told
    for row in update.removed:
        del rows[row]
    apply_update(rows, BatchUpdate(update.batch_size, [], [], update.moved))


@pytest.mark.parametrize("apply", [apply_update, added_first])
@given(steps=st.lists(ROWS, max_size=6))
def test_rows_are_followed(apply: Any, steps: list[list[int]]) -> None:
    tracker = BatchRows()
    rows: dict[int, Any] = {}
    before: list[int] = []
    for step in steps:
        requests = [REQUESTS[number] for number in step]
        update = tracker.update(requests)
        assert (update is None) == (step == before)
        if update is not None:
            assert update.batch_size == len(step)
            assert not set(update.removed) & {row for row, *_ in update.added}
            apply(rows, update)
        expected = {
            row: [each.params, each.prompt_token_ids, each.output_token_ids]
            for row, each in enumerate(requests)
        }
        assert rows == expected
        assert all(rows[row][2] is each.output_token_ids for row, each in enumerate(requests))
        before = step


def test_who_stays_is_not_told_again_and_moves_are_few() -> None:
    a, b, c, d = REQUESTS[:4]
    update = compare_rows([a, b, c], [d, b])
    assert (update.removed, [row for row, *_ in update.added], update.moved) == ([2], [0], [])
    update = compare_rows([a, b, c], [c, b])
    assert update.moved == [(2, 0, MoveDirectionality.UNIDIRECTIONAL)]
    assert (update.removed, update.added) == ([0], [])
    update = compare_rows([a, b], [b, a])
    assert update.moved == [(1, 0, MoveDirectionality.SWAP)]
