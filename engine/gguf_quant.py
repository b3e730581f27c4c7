"""From a GGUF tensor's bytes to a torch tensor, a cache's worth of blocks at a time.

The arithmetic is float32 and bit for bit the format's definition; the result is rounded once to the
wanted dtype. What a block means is ``gguf_blocks``' and ``gguf_k_blocks``', where the bytes lie is
``gguf``'s.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from . import gguf_blocks, gguf_k_blocks
from .gguf import TYPE_BLOCKS
from .gguf_blocks import Bytes

CHUNK_ELEMENTS = 30720
"""Converted at a time: 120 KiB of float32, which stays in a core's cache, and less than the 32768
elements from which torch calls its threads in, which would meet at a barrier every chunk."""

_PLAIN: dict[str, tuple[type[np.generic], torch.dtype]] = {
    "F32": (np.float32, torch.float32),
    "F16": (np.float16, torch.float16),
    # numpy has no bfloat16: the bits travel as integers.
    "BF16": (np.int16, torch.bfloat16),
}
_CONVERT = {**gguf_blocks.CONVERT, **gguf_k_blocks.CONVERT}


def dequantize(
    raw: Bytes,
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
    convert = _CONVERT[ggml_type]
    rows = out.view(-1, block_elements)
    chunk = CHUNK_ELEMENTS // block_elements
    work = torch.empty(chunk, block_elements)
    for start in range(0, len(blocks), chunk):
        part = blocks[start : start + chunk]
        target = rows[start : start + len(part)]
        if dtype == torch.float32:
            convert(part, target.numpy())
        else:
            convert(part, work[: len(part)].numpy())
            target.copy_(work[: len(part)])
    return out.view(shape)
