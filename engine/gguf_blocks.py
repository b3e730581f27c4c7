"""Blocks of 32 weights: from the bytes of GGUF's simple quantizations to float32.

The layouts are those of ``ggml-common.h`` (``block_q4_0`` and its siblings) in
https://github.com/ggml-org/ggml; the arithmetic follows ``ggml-quants.c`` there, operation by
operation. Blocks of 256 are ``gguf_k_blocks``', the loop over a tensor ``gguf_quant``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float32]
Convert = Callable[[Bytes, Floats], None]
"""``(blocks, out)``: ``[num_blocks, block_bytes] uint8`` to ``[num_blocks, block_elements]
float32``, both C-contiguous; every element of ``out`` is written."""

_HALF = 16
"""Element i lies in the low, element i + 16 in the high half of byte i."""


def halves(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte ``start`` of each block, ``[num_blocks, 1] float32``."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    """float16 scale, 32 signed bytes."""
    np.multiply(blocks[:, 2:].view(np.int8), halves(blocks, 0), out=out)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    """float16 scale, 32 four-bit integers with an offset of 8."""
    packed, scale = blocks[:, 2:], halves(blocks, 0)
    np.subtract(packed & 15, np.float32(8), out=out[:, :_HALF])
    np.subtract(packed >> 4, np.float32(8), out=out[:, _HALF:])
    np.multiply(out, scale, out=out)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    """float16 scale, float16 minimum, 32 four-bit integers."""
    packed, scale, minimum = blocks[:, 4:], halves(blocks, 0), halves(blocks, 2)
    np.multiply(packed & 15, scale, out=out[:, :_HALF])
    np.multiply(packed >> 4, scale, out=out[:, _HALF:])
    np.add(out, minimum, out=out)


def _five_bits(blocks: Bytes, start: int) -> Integers:
    """``[num_blocks, 32]`` integers below 32: 4 bytes of fifth bits, lowest first, then nibbles."""
    fifth: Integers = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    packed = blocks[:, start + 4 :]
    low: Integers = np.concatenate([packed & 15, packed >> 4], axis=1)
    return fifth << 4 | low


def _q5_0(blocks: Bytes, out: Floats) -> None:
    """float16 scale, 32 five-bit integers with an offset of 16."""
    np.subtract(_five_bits(blocks, 2), np.float32(16), out=out)
    np.multiply(out, halves(blocks, 0), out=out)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    """float16 scale, float16 minimum, 32 five-bit integers."""
    np.multiply(_five_bits(blocks, 4), halves(blocks, 0), out=out)
    np.add(out, halves(blocks, 2), out=out)


CONVERT: Mapping[str, Convert] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
}
