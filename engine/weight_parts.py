"""``WeightPart``: a weight of a GGUF file that is converted when it is copied, and only the part
that is copied.

A rank takes its rows or columns of a weight; so the rest of it never takes memory outside of the
file. Which part a layer takes is its ``weight_loader``'s to say, what the bytes mean is
``gguf_quant``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map_only

from .gguf import TYPE_BLOCKS
from .gguf_quant import dequantize

_aten = torch.ops.aten


@dataclass(frozen=True)
class Rectangle:
    """Rows and columns of one tensor of a file."""

    raw: npt.NDArray[np.uint8]
    """``[rows of the tensor, bytes of a row]``."""
    ggml_type: str
    dtype: torch.dtype
    """Of the result."""
    row_order: npt.NDArray[np.int64] | None
    """``[rows]``: where the file has each of them; ``None``: in their places."""
    rows: tuple[int, int]
    columns: tuple[int, int]
    """From and to, as ``rows``."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    def cut(self, dim: int, start: int, end: int) -> Rectangle:
        """The part from ``start`` to ``end`` along one dimension, counted from this one's edge."""
        old = self.columns if dim else self.rows
        new = (old[0] + start, old[0] + end)
        return replace(self, columns=new) if dim else replace(self, rows=new)

    def read(self) -> torch.Tensor:
        """Convert. Columns that begin or end within a block cost the rest of that block too."""
        block_elements, block_bytes = TYPE_BLOCKS[self.ggml_type]
        first = self.columns[0] // block_elements
        last = -(-self.columns[1] // block_elements)
        rows = slice(*self.rows) if self.row_order is None else self.row_order[slice(*self.rows)]
        picked = np.ascontiguousarray(self.raw[rows, first * block_bytes : last * block_bytes])
        wide = (self.shape[0], (last - first) * block_elements)
        converted = dequantize(picked.reshape(-1), self.ggml_type, wide, self.dtype)
        start = self.columns[0] - first * block_elements
        return converted[:, start : start + self.shape[1]]


class WeightPart(torch.Tensor):
    """``[rows, columns]``; slicing and splitting give parts again, ``copy_`` from one converts it,
    and to any other operation it is a plain tensor, converted for it."""

    rectangle: Rectangle
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[WeightPart], rectangle: Rectangle) -> WeightPart:
        part: WeightPart = torch.Tensor._make_wrapper_subclass(
            cls, rectangle.shape, dtype=rectangle.dtype
        )
        part.rectangle = rectangle
        return part

    def __repr__(self) -> str:  # type: ignore[override]
        return f"WeightPart({tuple(self.shape)}, {self.rectangle.ggml_type})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[Any, Any] | None = None,
    ) -> Any:
        part = args[0] if args else None
        if isinstance(part, WeightPart):
            if func is _aten.slice.Tensor:
                return _slice(part, *args[1:])
            if func is _aten.split_with_sizes.default:
                return _split(part, *args[1:])
            if func in (_aten.detach.default, _aten.alias.default):
                return WeightPart(part.rectangle)
        plain = tree_map_only(WeightPart, lambda each: each.rectangle.read(), (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def _slice(
    part: WeightPart, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    size = part.shape[dim]
    if step != 1:
        whole = part.rectangle.read()
        return _aten.slice.Tensor(whole, dim, start, end, step)  # type: ignore[no-any-return]
    first, last, _ = slice(start, end).indices(size)
    return WeightPart(part.rectangle.cut(dim % 2, first, max(first, last)))


def _split(part: WeightPart, sizes: Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    ends = np.cumsum(sizes).tolist()
    starts = [0, *ends[:-1]]
    return [
        WeightPart(part.rectangle.cut(dim % 2, start, end))
        for start, end in zip(starts, ends, strict=True)
    ]
