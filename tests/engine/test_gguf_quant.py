"""Dequantization against the ``gguf`` package, on data that it quantized and on random bytes."""

from __future__ import annotations

import struct

import gguf
import numpy
import numpy.typing as npt
import pytest
import torch
from gguf.constants import GGMLQuantizationType as QuantType

from hookserve.engine.gguf import TYPE_BLOCKS
from hookserve.engine.gguf_quant import CHUNK_ELEMENTS, dequantize

ALL = [*TYPE_BLOCKS]
WRITTEN_BY_THE_PACKAGE = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
FLOAT16S = {
    **{"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2]},
    **{"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]},
}
"""Where a block's scales and minima lie."""


def random_blocks(kind: str, num_blocks: int, seed: int) -> npt.NDArray[numpy.uint8]:
    """Any bytes, except that scales are neither infinite nor too large to be right in float16."""
    shape = (num_blocks, TYPE_BLOCKS[kind][1])
    blocks = numpy.random.default_rng(seed).integers(0, 256, shape, numpy.uint8)
    for start in FLOAT16S[kind]:
        blocks[:, start + 1] &= 0xBB
    return blocks


def test_every_block_size_is_the_packages() -> None:
    assert {kind: gguf.GGML_QUANT_SIZES[QuantType[kind]] for kind in ALL} == TYPE_BLOCKS


@pytest.mark.parametrize("kind", WRITTEN_BY_THE_PACKAGE)
@pytest.mark.parametrize("rows", [1, 7])
def test_values_equal_the_gguf_packages(kind: str, rows: int) -> None:
    values = numpy.random.default_rng(1).standard_normal((rows, 96)).astype(numpy.float32)
    values[0, :4] = (0, -0.0, 1e-3, -300)
    raw = gguf.quants.quantize(values, QuantType[kind])
    expected = gguf.quants.dequantize(raw, QuantType[kind]).reshape(values.shape)
    found = dequantize(raw.view(numpy.uint8).reshape(-1), kind, (rows, 96))
    assert found.shape == (rows, 96)
    assert found.dtype == torch.float32
    assert numpy.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kind", FLOAT16S)
@pytest.mark.parametrize(("rows", "row_blocks"), [(1, 1), (3, 1), (5, 3)])
def test_random_bytes_give_the_packages_bits(kind: str, rows: int, row_blocks: int) -> None:
    blocks = random_blocks(kind, rows * row_blocks, seed=rows)
    expected = gguf.quants.dequantize(blocks, QuantType[kind])
    shape = (rows, row_blocks * TYPE_BLOCKS[kind][0])
    found = dequantize(blocks.reshape(-1), kind, shape)
    assert found.shape == shape
    assert found.numpy().tobytes() == expected.tobytes()
    assert len(found.unique()) > 8


@pytest.mark.parametrize("kind", FLOAT16S)
def test_chunks_join_without_a_seam(kind: str) -> None:
    block_elements = TYPE_BLOCKS[kind][0]
    num_blocks = 2 * CHUNK_ELEMENTS // block_elements + 3
    blocks = random_blocks(kind, num_blocks, seed=2)
    expected = gguf.quants.dequantize(blocks, QuantType[kind])
    found = dequantize(blocks.reshape(-1), kind, (num_blocks * block_elements,))
    assert found.numpy().tobytes() == expected.tobytes()


def test_q8_k_is_its_scale_times_signed_bytes() -> None:
    """``block_q8_K``: float32 d, int8 qs[256], int16 bsums[16]; the package does not read it."""
    bytes_ = [(7 * index) % 256 - 128 for index in range(256)]
    first = struct.pack("<f256b16h", 0.375, *bytes_, *range(16))
    second = struct.pack("<f256b16h", -1.5, *reversed(bytes_), *[-1] * 16)
    raw = numpy.frombuffer(first + second, numpy.uint8)
    found = dequantize(raw, "Q8_K", (2, 256))
    assert found[0].tolist() == [0.375 * value for value in bytes_]
    assert found[1].tolist() == [-1.5 * value for value in reversed(bytes_)]


@pytest.mark.parametrize("kind", FLOAT16S)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_is_one_rounding_of_float32(kind: str, dtype: torch.dtype) -> None:
    blocks = random_blocks(kind, 4, seed=3)
    shape = (4, TYPE_BLOCKS[kind][0])
    found = dequantize(blocks.reshape(-1), kind, shape, dtype)
    assert found.dtype == dtype
    assert torch.equal(found, dequantize(blocks.reshape(-1), kind, shape).to(dtype))


def test_plain_numbers_are_rounded_once_too() -> None:
    values = numpy.random.default_rng(3).standard_normal((4, 64)).astype(numpy.float32)
    raw = values.view(numpy.uint8).reshape(-1)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(dequantize(raw, "F32", (4, 64), dtype), torch.tensor(values).to(dtype))


def test_the_result_does_not_alias_the_file() -> None:
    raw = numpy.zeros(16, numpy.uint8)
    found = dequantize(raw, "F32", (4,))
    found += 1
    assert not raw.any()
