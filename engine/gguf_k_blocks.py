"""Blocks of 256 weights: from the bytes of GGUF's K quantizations to float32.

A block holds sub-blocks of 16 or 32 weights, each with a scale, and some with a minimum, that are
small integers themselves, times one float16 for the whole block. The layouts are those of
``ggml-common.h`` (``block_q2_K`` to ``block_q8_K``) in https://github.com/ggml-org/ggml; the
arithmetic follows ``dequantize_row_q*_K`` of ``ggml-quants.c`` there, operation by operation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .gguf_blocks import Bytes, Convert, Floats, Integers, halves


def _shifts(*bits: int) -> Bytes:
    """Right shifts along a new next-to-last axis."""
    return np.array(bits, np.uint8).reshape(-1, 1)


_NIBBLES = _shifts(0, 4)
_PAIRS = _shifts(0, 2, 4, 6)
_BITS = _shifts(*range(8))


def _q2_k(blocks: Bytes, out: Floats) -> None:
    """16 bytes of four-bit scales and minima, 64 of two-bit integers, float16 scale and minimum.

    Each 32 bytes hold 128 weights: the lowest pairs of bits the first 32, and so on.
    """
    packed, scales = blocks[:, 16:80].reshape(-1, 2, 1, 32), blocks[:, :16]
    scale = halves(blocks, 80) * (scales & 15)  # [blocks, 16]
    minimum = halves(blocks, 82) * (scales >> 4)  # [blocks, 16]
    target = out.reshape(-1, 16, 16)
    np.multiply((packed >> _PAIRS & 3).reshape(target.shape), scale[:, :, None], out=target)
    np.subtract(target, minimum[:, :, None], out=target)


def _q3_k(blocks: Bytes, out: Floats) -> None:
    """32 bytes of third bits, 64 of two-bit integers, 12 of six-bit scales, float16 scale.

    An integer has an offset of 4, a scale one of 32. Third bits of the n-th 32 weights are bit n
    of the 32 bytes.
    """
    third = blocks[:, None, :32] >> _BITS & 1  # [blocks, 8, 32]
    packed = blocks[:, 32:96].reshape(-1, 2, 1, 32) >> _PAIRS & 3  # [blocks, 2, 4, 32]
    scale = halves(blocks, 108) * (_q3_k_scales(blocks[:, 96:108]) - np.float32(32))
    target = out.reshape(-1, 16, 16)
    integers = (third << 2 | packed.reshape(third.shape)).reshape(target.shape)
    np.subtract(integers, np.float32(4), out=target)
    np.multiply(target, scale[:, :, None], out=target)


def _q3_k_scales(packed: Bytes) -> Integers:
    """``[blocks, 12]`` bytes to ``[blocks, 16]`` integers below 64: 8 bytes of low four bits, then
    4 bytes of high pairs."""
    low = (packed[:, None, :8] >> _NIBBLES & 15).reshape(-1, 16)
    high = (packed[:, None, 8:] >> _PAIRS & 3).reshape(-1, 16)
    return low | high << 4


def _six_bit_scales(packed: Bytes) -> tuple[Integers, Integers]:
    """``[blocks, 12]`` bytes to the ``[blocks, 8]`` scales and minima below 64 of Q4_K and Q5_K.

    The first 4 of each lie whole in bytes 0 to 7; the others have their low four bits in bytes 8
    to 11 and their high two above the first ones.
    """
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _scale_and_shift(blocks: Bytes, integers: Integers, out: Floats) -> None:
    """``[blocks, 8, 32]`` integers of Q4_K and Q5_K, whose blocks begin alike, to weights."""
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    scale, minimum = halves(blocks, 0) * scales, halves(blocks, 2) * minima  # [blocks, 8]
    target = out.reshape(-1, 8, 32)
    np.multiply(integers, scale[:, :, None], out=target)
    np.subtract(target, minimum[:, :, None], out=target)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """float16 scale and minimum, 12 bytes of six-bit ones, 128 bytes of four-bit integers.

    32 bytes hold 64 weights: the low halves the first 32.
    """
    packed = blocks[:, 16:].reshape(-1, 4, 1, 32) >> _NIBBLES & 15
    _scale_and_shift(blocks, packed.reshape(-1, 8, 32), out)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    """As Q4_K, with 32 bytes of fifth bits before the integers: bit n for the n-th 32 weights."""
    fifth = blocks[:, None, 16:48] >> _BITS & 1
    packed = blocks[:, 48:].reshape(-1, 4, 1, 32) >> _NIBBLES & 15
    _scale_and_shift(blocks, fifth << 4 | packed.reshape(fifth.shape), out)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """128 bytes of low four bits, 64 of high pairs, 16 signed scales, float16 scale; offset 32.

    Each half of a block has 64 bytes whose low halves are its first 64 weights, and 32 bytes whose
    lowest pairs are the high bits of its first 32.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> _NIBBLES & 15  # [blocks, 2, 2, 64]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIRS & 3  # [blocks, 2, 4, 32]
    scale = halves(blocks, 208) * blocks[:, 192:208].view(np.int8)  # [blocks, 16]
    target = out.reshape(-1, 16, 16)
    integers = low.reshape(target.shape) | high.reshape(target.shape) << 4
    np.subtract(integers, np.float32(32), out=target)
    np.multiply(target, scale[:, :, None], out=target)


def _q8_k(blocks: Bytes, out: Floats) -> None:
    """float32 scale, 256 signed bytes; 16 sums follow that only products need."""
    scale = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    np.multiply(blocks[:, 4:260].view(np.int8), scale, out=out)


CONVERT: Mapping[str, Convert] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_K": _q8_k,
}
