"""Writing a step's keys and values into a layer's paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import block_of, warps_of

_MAX_TILE = 4096


@triton.jit
def _write_cache(
    cache_ptr: tl.tensor,
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    slots_stride: tl.tensor,
    key_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_stride: tl.tensor,
    value_head_stride: tl.tensor,
    heads: tl.tensor,
    size: tl.tensor,
    block_size: tl.tensor,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    at = tl.arange(0, SIZE)[None, :]
    inside = (head < heads) & (at < size)
    slot = tl.load(slots_ptr + token * slots_stride).to(tl.int64)
    # [blocks, 2, heads, block_size, size]: a block's values lie behind all its keys.
    keys = slot // block_size * 2 * heads * block_size * size
    there = (head * block_size + slot % block_size) * size + at
    key = tl.load(key_ptr + token * key_stride + head * key_head_stride + at, mask=inside)
    tl.store(cache_ptr + keys + there, key, mask=inside)
    value = tl.load(value_ptr + token * value_stride + head * value_head_stride + at, mask=inside)
    tl.store(cache_ptr + keys + heads * block_size * size + there, value, mask=inside)


def write_cache(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """The twin of ``PagedAttentionImpl._write``.

    Args:
        cache: ``[blocks, 2, kv_heads, block_size, head_size]``, contiguous.
        key: ``[tokens, kv_heads, head_size]``, as ``value``; in any order of memory.
        slots: ``[tokens]`` integers, ``block * block_size + offset``; which of them there are is
            not looked at.

    Raises:
        ValueError: a model gave keys or values of another type or shape than the cache's and the
            step's.
    """
    _, _, heads, block_size, size = cache.shape
    expected = (slots.shape[0], heads, size)
    for given in (key, value):
        if (given.dtype, given.device, tuple(given.shape)) != (cache.dtype, cache.device, expected):
            raise ValueError(
                f"attention got keys and values of {tuple(given.shape)} in {given.dtype} on "
                f"{given.device}; expected {expected} in {cache.dtype} on {cache.device}"
            )
    if not key.numel():
        return
    key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (key, value))
    block = block_of(size)
    tile = min(block_of(heads), max(1, _MAX_TILE // block))
    _write_cache[(slots.shape[0], triton.cdiv(heads, tile))](
        cache,
        key,
        value,
        slots,
        slots.stride(0),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        heads,
        size,
        block_size,
        HEADS=tile,
        SIZE=block,
        num_warps=warps_of(tile * block),
    )
