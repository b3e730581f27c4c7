"""Dequantization against the ``gguf`` package, on data that it quantized itself."""

from __future__ import annotations

import gguf
import numpy
import pytest
import torch
from gguf.constants import GGMLQuantizationType as QuantType

from hookserve.engine.gguf import TYPE_BLOCKS
from hookserve.engine.gguf_quant import CHUNK_BLOCKS, dequantize


@pytest.mark.parametrize("kind", TYPE_BLOCKS)
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


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_chunks_join_without_a_seam(kind: str) -> None:
    num_blocks = 2 * CHUNK_BLOCKS + 3
    block_bytes = TYPE_BLOCKS[kind][1]
    raw = numpy.random.default_rng(2).integers(0, 256, num_blocks * block_bytes, numpy.uint8)
    blocks = raw.reshape(num_blocks, block_bytes)
    blocks[:, 1] &= 0x3B  # scales and minima stay finite
    blocks[:, 3] &= 0x3B
    expected = gguf.quants.dequantize(blocks, QuantType[kind]).reshape(-1)
    found = dequantize(raw, kind, (num_blocks * 32,))
    assert numpy.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kind", TYPE_BLOCKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_is_one_rounding_of_float32(kind: str, dtype: torch.dtype) -> None:
    values = numpy.random.default_rng(3).standard_normal((4, 64)).astype(numpy.float32)
    raw = gguf.quants.quantize(values, QuantType[kind]).view(numpy.uint8).reshape(-1)
    found = dequantize(raw, kind, (4, 64), dtype)
    assert found.dtype == dtype
    assert torch.equal(found, dequantize(raw, kind, (4, 64)).to(dtype))


def test_the_result_does_not_alias_the_file() -> None:
    raw = numpy.zeros(16, numpy.uint8)
    found = dequantize(raw, "F32", (4,))
    found += 1
    assert not raw.any()
