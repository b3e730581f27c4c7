"""From a GGUF tensor's bytes to numbers: one vectorised routine for each supported type.

The arithmetic is float32 and element by element the format's definition (scale times integer, plus
a minimum where there is one); the result is rounded once to the wanted dtype. Where the bytes lie
is ``gguf``'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from .gguf import TYPE_BLOCKS

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

CHUNK_BLOCKS = 960
"""Blocks converted at a time: 120 KiB of float32, which stays in a core's cache, and less than the
32768 elements from which torch calls its threads in, which would meet at a barrier every chunk."""

_HALF = 16
"""A 4-bit block holds element i in the low and element i + 16 in the high half of byte i."""


def dequantize(
    raw: _Bytes,
    ggml_type: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Convert a tensor's bytes.

    Args:
        raw: ``[num_bytes] uint8``, as ``GGUFFile.raw`` gives them; not written to.
        ggml_type: one of ``gguf.TYPE_BLOCKS``.
        shape: row-major; its product is the number of elements in ``raw``.
        dtype: of the result.

    Returns:
        A new tensor of ``shape`` and ``dtype`` with memory of its own.
    """
    block_elements, block_bytes = TYPE_BLOCKS[ggml_type]
    num_elements = math.prod(shape)
    assert raw.size * block_elements == num_elements * block_bytes, (raw.size, ggml_type, shape)
    if ggml_type in _PLAIN:
        view = torch.from_numpy(raw.view(_PLAIN[ggml_type][0]).copy())
        return view.view(_PLAIN[ggml_type][1]).to(dtype).view(shape)
    out = torch.empty(num_elements, dtype=dtype)
    blocks = raw.reshape(-1, block_bytes)
    convert = _QUANTIZED[ggml_type]
    rows = out.view(-1, block_elements)
    work = torch.empty(CHUNK_BLOCKS, block_elements)
    for start in range(0, len(blocks), CHUNK_BLOCKS):
        part = blocks[start : start + CHUNK_BLOCKS]
        target = rows[start : start + len(part)]
        if dtype == torch.float32:
            convert(part, target.numpy())
        else:
            convert(part, work[: len(part)].numpy())
            target.copy_(work[: len(part)])
    return out.view(shape)


_PLAIN: dict[str, tuple[type[np.generic], torch.dtype]] = {
    "F32": (np.float32, torch.float32),
    "F16": (np.float16, torch.float16),
    # numpy has no bfloat16: the bits travel as integers.
    "BF16": (np.int16, torch.bfloat16),
}


def _column(blocks: _Bytes, start: int) -> _Floats:
    """The float16 at byte ``start`` of each block, ``[num_blocks, 1] float32``."""
    halves = np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)
    return halves.astype(np.float32)


def _q8_0(blocks: _Bytes, out: _Floats) -> None:
    """float16 scale, 32 signed bytes."""
    np.multiply(blocks[:, 2:].view(np.int8), _column(blocks, 0), out=out)


def _q4_0(blocks: _Bytes, out: _Floats) -> None:
    """float16 scale, 32 four-bit integers with an offset of 8."""
    packed, scale = blocks[:, 2:], _column(blocks, 0)
    np.subtract(packed & 15, np.float32(8), out=out[:, :_HALF])
    np.subtract(packed >> 4, np.float32(8), out=out[:, _HALF:])
    np.multiply(out, scale, out=out)


def _q4_1(blocks: _Bytes, out: _Floats) -> None:
    """float16 scale, float16 minimum, 32 four-bit integers."""
    packed, scale, minimum = blocks[:, 4:], _column(blocks, 0), _column(blocks, 2)
    np.multiply(packed & 15, scale, out=out[:, :_HALF])
    np.multiply(packed >> 4, scale, out=out[:, _HALF:])
    np.add(out, minimum, out=out)


_QUANTIZED: dict[str, Callable[[_Bytes, _Floats], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}
