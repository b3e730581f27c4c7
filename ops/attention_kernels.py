"""Attention over keys and values that are already gathered: two ways to the same values, and one
with capped scores.

``attend`` is torch's own fused attention. The functions ``…_by_matmul`` compute the scores as one
batched product, which on a CPU with bfloat16 instructions is up to twice as fast, because the fused
one does not use them for heads this small. The fused one cannot cap scores; the functions
``…_capped`` do, plainly. Which way is taken where is ``attention``'s decision; where keys come
from is not known here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_MAX_QUERY_ROWS = 128
_MAX_SCORES = 2 << 20
# Scores of one product: 4 MiB in bfloat16, so that they are still in the cache when they are used.


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """One call of torch's attention.

    Args:
        query: ``[batch, kv_heads, rows, head_size]`` or ``[kv_heads, group, rows, head_size]``;
            keys and values of the same first two dimensions, possibly expanded.
        mask: added to the scores; broadcast.
        is_causal: row ``i`` sees keys ``0 .. i``.
    """
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale
    )


def decode_by_matmul(
    query: torch.Tensor,
    new_keys: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    mask: torch.Tensor,
) -> torch.Tensor:
    """One new token of each of ``n`` sequences over its context.

    The score of the token's own key is subtracted from each row before it is rounded. The softmax
    does not change, and the rounding error of a score becomes relative to its distance from
    there: those that weigh most are rounded least, even if all of them are large.

    Args:
        query: ``[n, kv_heads, group, head_size]``.
        new_keys: ``[n, kv_heads, head_size]``: the tokens' own keys.
        keys: ``[n, kv_heads, positions, head_size]``, contiguous, as ``values``.
        mask: ``[n, 1, 1, positions]``, 0 or -inf.

    Returns:
        ``[n, kv_heads * group * head_size]``.
    """
    n, kv_heads, group, size = query.shape
    query = query * scale
    own = (query * new_keys[:, :, None]).sum(-1, keepdim=True)  # [n, kv_heads, group, 1]
    scores = (mask - own).view(n * kv_heads, group, -1)
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # [n * kv_heads, positions, size]
    scores.baddbmm_(query.view(n * kv_heads, group, size), keys.transpose(1, 2))
    weights = torch.softmax(scores, dim=-1)
    return torch.bmm(weights, values).view(n, -1)


def prefill_by_matmul(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    scratch: dict[Any, Any],
) -> None:
    """The last ``n`` tokens of one sequence over all its ``length`` tokens, causally.

    Rows are taken in chunks, and a chunk's product stops at its last row's key. From each row the
    larger one of two of its scores, with its own key and with the first key (which many models use
    as a sink), is subtracted before rounding; why, ``decode_by_matmul`` says.

    Args:
        query: ``[n, kv_heads, group, head_size]``, as ``output``, which is filled.
        keys: ``[kv_heads, length, head_size]``, contiguous, as ``values``.
        scratch: lives for the step; holds the chunks' causal mask and a buffer for scores.
    """
    n, kv_heads, group, size = query.shape
    length = keys.shape[1]
    start = length - n
    query = query.transpose(0, 1) * scale  # [kv_heads, n, group, head_size]
    own = (query * keys[:, start:, None]).sum(-1)
    first = (query * keys[:, :1, None]).sum(-1)
    shift = torch.maximum(own, first).neg_().view(kv_heads, n * group, 1)
    query = query.reshape(kv_heads, n * group, size)
    keys = keys.transpose(1, 2)  # [kv_heads, head_size, length]
    chunk = max(16, min(_MAX_QUERY_ROWS, _MAX_SCORES // (kv_heads * group * length)))
    later = _causal_mask(chunk, group, query.dtype, scratch)
    for row in range(0, n, chunk):
        rows = min(chunk, n - row)
        end = start + row + rows
        part = slice(row * group, (row + rows) * group)
        scores = _scores((kv_heads, rows * group, end), query.dtype, scratch)
        torch.baddbmm(shift[:, part].expand_as(scores), query[:, part], keys[..., :end], out=scores)
        scores[..., end - rows :] += later[: rows * group, :rows]
        torch.softmax(scores, dim=-1, out=scores)
        attended = torch.bmm(scores, values[:, :end])  # [kv_heads, rows * group, head_size]
        output[row : row + rows].copy_(attended.view(kv_heads, rows, group, size).transpose(0, 1))


def decode_capped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    cap: float,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """One new token of each of ``n`` sequences over its context, with capped scores.

    Shapes are those of ``decode_by_matmul``; ``mask`` may be ``None`` for a single sequence.
    """
    n, kv_heads, group, size = query.shape
    scores = torch.matmul(query.float() * scale, keys.float().transpose(2, 3))
    weights = _capped_weights(scores, cap, mask)  # [n, kv_heads, group, positions]
    attended = torch.matmul(weights, values.float())
    return attended.to(query.dtype).view(n, kv_heads * group * size)


def prefill_capped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    cap: float,
    mask: torch.Tensor | None,
    output: torch.Tensor,
) -> None:
    """The last ``n`` tokens of one sequence over its ``length`` keys, with capped scores.

    Args:
        query: ``[n, kv_heads, group, head_size]``, as ``output``, which is filled.
        keys: ``[kv_heads, length, head_size]``, as ``values``.
        mask: ``[n, length]``, 0 or -inf; ``None`` where every token sees every key.
    """
    n, kv_heads, group, size = query.shape
    length = keys.shape[1]
    keys, values = keys.float().transpose(1, 2), values.float()
    rows = max(16, min(_MAX_QUERY_ROWS, _MAX_SCORES // (kv_heads * group * length)))
    for row in range(0, n, rows):
        part = query[row : row + rows].float().transpose(0, 1) * scale
        scores = torch.bmm(part.reshape(kv_heads, -1, size), keys)
        own = None if mask is None else mask[row : row + rows, None]
        weights = _capped_weights(scores.view(kv_heads, -1, group, length), cap, own)
        attended = torch.bmm(weights.view(scores.shape), values)
        output[row : row + rows].copy_(attended.view(part.shape).transpose(0, 1))


def _capped_weights(scores: torch.Tensor, cap: float, mask: torch.Tensor | None) -> torch.Tensor:
    """``softmax(cap * tanh(scores / cap) + mask)`` over the last dimension, in float32, in which
    the scores are given; they are overwritten."""
    scores.div_(cap).tanh_().mul_(cap)
    if mask is not None:
        scores.add_(mask)
    return torch.softmax(scores, dim=-1)


def _causal_mask(
    chunk: int, group: int, dtype: torch.dtype, scratch: dict[Any, Any]
) -> torch.Tensor:
    """``[chunk * group, chunk]``: -inf where a row's key comes later than the row."""
    name = ("causal mask", chunk, group, dtype)
    mask = scratch.get(name)
    if mask is None:
        mask = torch.full((chunk, chunk), float("-inf"), dtype=dtype).triu_(1)
        mask = scratch[name] = mask.repeat_interleave(group, dim=0)
    return mask


def _scores(
    shape: tuple[int, int, int], dtype: torch.dtype, scratch: dict[Any, Any]
) -> torch.Tensor:
    size = shape[0] * shape[1] * shape[2]
    buffer = scratch.get(("scores", dtype))
    if buffer is None or buffer.numel() < size:
        buffer = scratch[("scores", dtype)] = torch.empty(size, dtype=dtype)
    return buffer[:size].view(shape)
