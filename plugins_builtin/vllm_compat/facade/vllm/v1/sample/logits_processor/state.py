"""Batch updates by hand, and processors by the moment at which they are applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .interface import AddedRequest, BatchUpdate, LogitsProcessor, MovedRequest, RemovedRequest

__all__ = ["BatchUpdateBuilder", "LogitsProcessors"]

__surface__ = {
    "BatchUpdateBuilder": "shape: puts a BatchUpdate together, for a processor's own tests; the "
    "worker makes those of its steps otherwise",
    "LogitsProcessors": "shape: sorts processors by is_argmax_invariant; the sampler keeps its own",
}


class BatchUpdateBuilder:
    """Collects what happens to the rows of a batch, until it is taken."""

    def __init__(
        self,
        removed: list[RemovedRequest] | None = None,
        added: list[AddedRequest] | None = None,
        moved: list[MovedRequest] | None = None,
    ) -> None:
        self._removed = removed or []
        self.added = added or []
        self.moved = moved or []

    @property
    def removed(self) -> list[RemovedRequest]:
        """The highest row first."""
        return sorted(self._removed, reverse=True)

    def removed_append(self, index: int) -> None:
        self._removed.append(index)

    def has_removed(self) -> bool:
        return bool(self._removed)

    def peek_removed(self) -> int | None:
        """The lowest row that was given up."""
        return min(self._removed, default=None)

    def pop_removed(self) -> int | None:
        """The lowest row that was given up, for somebody else."""
        lowest = self.peek_removed()
        if lowest is not None:
            self._removed.remove(lowest)
        return lowest

    def reset(self) -> bool:
        """Forget all of it; whether there was anything."""
        had_any = bool(self._removed or self.added or self.moved)
        self._removed, self.added, self.moved = [], [], []
        return had_any

    def get_and_reset(self, batch_size: int) -> BatchUpdate | None:
        """The update, which is forgotten here; ``None``: nothing happened."""
        update = BatchUpdate(batch_size, self.removed, self.added, self.moved)
        return update if self.reset() else None


class LogitsProcessors:
    """Some processors, in two groups."""

    def __init__(self, logitsprocs: Iterable[LogitsProcessor] = ()) -> None:
        self.argmax_invariant: list[LogitsProcessor] = []
        self.non_argmax_invariant: list[LogitsProcessor] = []
        for each in logitsprocs:
            keeps = each.is_argmax_invariant()
            (self.argmax_invariant if keeps else self.non_argmax_invariant).append(each)

    @property
    def all(self) -> Iterator[LogitsProcessor]:
        yield from self.argmax_invariant
        yield from self.non_argmax_invariant
