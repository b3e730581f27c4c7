"""``BatchRows``: which request is in which row of the logits, and how that has changed since the
last step, in the words of ``logits_processor.BatchUpdate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .logits_processor import AddedRequest, BatchUpdate, MoveDirectionality, MovedRequest
from .sampling_params import SamplingParams


class RowRequest(Protocol):
    """A request as rows know it; two are the same if they are one object."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def prompt_token_ids(self) -> list[int]: ...

    @property
    def output_token_ids(self) -> list[int]: ...


class BatchRows:
    def __init__(self) -> None:
        self._requests: list[RowRequest] = []

    def update(self, requests: Sequence[RowRequest]) -> BatchUpdate | None:
        """Take the rows of this step.

        Returns: what has changed; ``None``: nothing.
        """
        before, self._requests = self._requests, list(requests)
        if len(before) == len(requests) and all(map(_is, before, requests)):
            return None
        return compare_rows(before, requests)


def _is(one: RowRequest, other: RowRequest) -> bool:
    return one is other


def compare_rows(before: Sequence[RowRequest], after: Sequence[RowRequest]) -> BatchUpdate:
    """What makes ``after`` of ``before``. A request that is new goes where it belongs if that row
    is free; whoever is then in a wrong row is moved, lowest row first."""
    wanted = {id(request): row for row, request in enumerate(after)}
    known = {id(request) for request in before}
    rows: list[RowRequest | None] = [r if id(r) in wanted else None for r in before]
    rows += [None] * (len(after) - len(before))
    gone = {row for row in range(len(before)) if rows[row] is None}
    added = {}
    for request in (r for r in after if id(r) not in known):
        row = wanted[id(request)]
        if rows[row] is None:
            rows[row] = added[row] = request
    placed = {id(request) for request in added.values()}
    free = (row for row, request in enumerate(rows) if request is None)
    for request in (r for r in after if id(r) not in known and id(r) not in placed):
        row = next(free)
        rows[row] = added[row] = request
    return BatchUpdate(
        batch_size=len(after),
        removed=sorted(gone - added.keys()),
        added=[_added(row, request) for row, request in sorted(added.items())],
        moved=_moves(rows, wanted, len(after)),
    )


def _added(row: int, request: RowRequest) -> AddedRequest:
    return row, request.params, request.prompt_token_ids, request.output_token_ids


def _moves(rows: list[RowRequest | None], wanted: dict[int, int], size: int) -> list[MovedRequest]:
    """The moves that bring every request of ``rows`` into the row that is wanted."""
    where = {wanted[id(request)]: row for row, request in enumerate(rows) if request is not None}
    moves = []
    for row in range(size):
        here = where[row]
        if here == row:
            continue
        other = rows[row]
        if other is None:
            moves.append((here, row, MoveDirectionality.UNIDIRECTIONAL))
        else:
            moves.append((here, row, MoveDirectionality.SWAP))
            where[wanted[id(other)]] = here
        rows[row], rows[here] = rows[here], other
        where[row] = row
    return moves
