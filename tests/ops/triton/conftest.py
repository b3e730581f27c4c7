"""What tests of kernels share: memory in which a number that is no number stands all around."""

from __future__ import annotations

from typing import Any

import pytest
import torch

_MARGIN = 64


class Canaries:
    """Hands out memory, and knows whether anybody wrote beside it."""

    def __init__(self) -> None:
        self._given: list[tuple[torch.Tensor, int]] = []

    def new_empty(self, like: torch.Tensor, *shape: Any) -> torch.Tensor:
        size = torch.Size(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        memory = torch.full((size.numel() + 2 * _MARGIN,), torch.nan, dtype=like.dtype)
        self._given.append((memory, size.numel()))
        return memory[_MARGIN : _MARGIN + size.numel()].view(size)

    def check(self, count: int) -> None:
        """So many tensors were handed out, filled to the last number, and nothing beside."""
        given, self._given = self._given, []
        assert len(given) == count
        for memory, size in given:
            assert memory[:_MARGIN].isnan().all() and memory[_MARGIN + size :].isnan().all()
            assert not memory[_MARGIN : _MARGIN + size].isnan().any()

    def forget(self) -> None:
        """Begin anew: another example of the same test may have failed before its end."""
        self._given = []


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """What launchers allocate lies between canaries."""
    given, plain = Canaries(), torch.Tensor.new_empty

    def new_empty(like: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        # The interpreter's own come with options.
        return plain(like, *shape, **options) if options else given.new_empty(like, *shape)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    return given
