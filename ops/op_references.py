"""The definition of each op that can be provided: its shapes, types and maths, as plain torch.

``REFERENCES`` has each under its registered name, with the arguments that its providers get. They
are written to be read: what a model computes with are the layers' own functions and the providers,
and each of those must give what the function here does, in contiguous tensors.
``tests/support/op_cases.py`` draws the arguments, and says how near is near enough.

A provider that is declared by a built-in plugin (``plugins_builtin/op_providers.py``) is found and
compared by ``tests/ops/test_op_references.py`` without being named there, on every kind of tensor
that its ``supports`` takes in that process. One that needs a process of its own, such as an
interpreter, is compared there by ``op_cases.check``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

GREEDY_TEMPERATURE = 1e-5
"""Below this a temperature is taken as 0: the best token has all of the probability."""

# -- norms, activations, rotations -----------------------------------------------------------------


def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``t / sqrt(mean(t^2) + eps) * weight`` over the last dimension, where ``t`` is ``x``, or
    ``x + residual`` rounded to its type. The quotient is float32 and rounded before it is weighted.

    Args:
        x: ``[..., width]``, as ``residual``.
        weight: ``[width]``.

    Returns:
        ``(normalised, t)``; ``(normalised, None)`` without a residual.
    """
    total = x if residual is None else x + residual
    return _normalised(total, eps).to(x.dtype) * weight, None if residual is None else total


def gemma_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As ``rms_norm``, but weighted by ``1 + weight`` in float32, and rounded after it."""
    total = x if residual is None else x + residual
    normalised = (_normalised(total, eps) * (1.0 + weight.float())).to(x.dtype)
    return normalised, None if residual is None else total


def _normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(x[..., :d]) * x[..., d:]`` for ``x: [..., 2 * d]``, where ``silu(a)`` is
    ``a / (1 + exp(-a))``."""
    gate, up = x.float().chunk(2, dim=-1)
    return (gate / (1.0 + torch.exp(-gate)) * up).to(x.dtype)


def gelu_and_mul(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` for ``x: [..., 2 * d]``.

    Args:
        approximate: ``"none"``: ``a * (1 + erf(a / sqrt(2))) / 2``; ``"tanh"``: its usual
            approximation.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return (F.gelu(gate, approximate=approximate) * up).to(x.dtype)


def rotary_embedding(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int
) -> torch.Tensor:
    """Turn the pairs ``(i, i + r / 2)`` of the first ``r`` elements of each head; the rest stay.

    Args:
        x: ``[tokens, heads * head_size]``; rows may be strided.
        cos: ``[tokens, 1, r]``, of ``x``'s type, as ``sin``, which is negative in its first half.
            Of ``rotary_embedding`` ``r`` is ``head_size``.

    Returns:
        A tensor of its own, shaped like ``x``.
    """
    heads = x.reshape(x.shape[0], -1, head_size).float()
    turning, staying = heads[..., : cos.shape[-1]], heads[..., cos.shape[-1] :]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos.float() + torch.cat((second, first), dim=-1) * sin.float()
    return torch.cat((turned, staying), dim=-1).to(x.dtype).reshape(x.shape)


# -- products --------------------------------------------------------------------------------------


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The rows ``ids`` of ``weight``.

    Args:
        ids: ``[tokens]`` int, each in ``[0, rows)``.
        weight: ``[rows, hidden]``: this rank's part of the vocabulary.

    Returns:
        ``[tokens, hidden]``, a tensor of its own.
    """
    return weight[ids]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``, summed in float32. Which rows or columns of the whole a rank has,
    and what the ranks exchange, is the layer's business, and the same for every provider.

    Args:
        x: ``[..., in]``; rows may be strided.
        weight: ``[out, in]``, contiguous.
        bias: ``[out]``.

    Returns:
        ``[..., out]``, a tensor of its own.
    """
    product = x.float() @ weight.float().T
    return (product if bias is None else product + bias.float()).to(x.dtype)


def logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The scores of the rows of a head: ``linear``, from ``hidden: [rows, hidden]`` by ``weight:
    [vocabulary of this rank, hidden]`` to ``[rows, vocabulary of this rank]``."""
    return linear(hidden, weight, bias)


# -- the cache and attention -----------------------------------------------------------------------


def kv_write(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Put the keys and values of tokens where the tokens' slots are; all else stays.

    Args:
        cache: ``[blocks, 2, kv_heads, block_size, head_size]``, contiguous; of a block first the
            keys, then the values.
        key: ``[tokens, kv_heads, head_size]``, as ``value``; rows may be strided.
        slots: ``[tokens]`` int64, ``block * block_size + offset``, no two of them equal.
    """
    block, offset = slots // cache.shape[3], slots % cache.shape[3]
    cache[block, 0, :, offset] = key
    cache[block, 1, :, offset] = value


def paged_attention_decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """Attention of the newest token of each sequence over all of its tokens, itself included.

    Args:
        query: ``[sequences, heads, head_size]``; rows may be strided.
        cache: as of ``kv_write``, the newest tokens included. Positions behind a sequence's end,
            and blocks that are not its own, hold any finite numbers.
        block_tables: ``[sequences, max_blocks]`` int64: the blocks of each, in order; rows are
            padded with 0.
        seq_lens: ``[sequences]`` int64, at least 1.
        scale: scores are multiplied by it.
        window: a token sees so many tokens at most, itself the last of them; ``None``: all.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; ``None``: they stay.

    Returns:
        ``[sequences, heads, head_size]`` of the query's type, a tensor of its own. The weights are
        ``softmax`` of the scores in float32.
    """
    starts = torch.arange(len(seq_lens) + 1, device=query.device)
    return paged_attention_prefill(
        query, cache, block_tables, seq_lens, starts, scale, window, soft_cap
    )


def paged_attention_prefill(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """Attention of the newest tokens of each sequence; each sees the tokens up to itself.

    Args:
        query: ``[tokens, heads, head_size]``, the sequences one after another; rows may be strided.
        query_start_loc: ``[sequences + 1]`` int64: those of sequence ``i`` are the rows
            ``query_start_loc[i]`` to ``query_start_loc[i + 1]``. They are the last ones of its
            ``seq_lens[i]``, and at least one.

    The others, and what is returned, are as of ``paged_attention_decode``.
    """
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    for at, length in enumerate(seq_lens.tolist()):
        rows = slice(int(query_start_loc[at]), int(query_start_loc[at + 1]))
        num_blocks = -(-length // cache.shape[3])
        # [2, kv_heads, positions, head_size]
        held = cache[block_tables[at, :num_blocks]].permute(1, 2, 0, 3, 4).flatten(2, 3)
        keys, values = held[:, :, :length].float()
        output[rows] = _attend(query[rows], keys, values, scale, window, soft_cap)
    return output


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """The last tokens of one sequence, ``[new, heads, head_size]``, over ``keys`` and ``values:
    [kv_heads, length, head_size]``; each key head is shared by as many heads, one after another."""
    new, heads, size = query.shape
    kv_heads, length, _ = keys.shape
    grouped = query.float().view(new, kv_heads, heads // kv_heads, size)
    scores = torch.einsum("nkgd,kld->kgnl", grouped, keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    own = torch.arange(length - new, length, device=query.device)[:, None]
    distance = own - torch.arange(length, device=query.device)
    sees = (distance >= 0) & (distance < (length if window is None else window))
    weights = torch.softmax(scores.masked_fill(~sees, float("-inf")), dim=-1)
    attended = torch.einsum("kgnl,kld->nkgd", weights, values)
    return attended.reshape(new, heads, size).to(query.dtype)


# -- sampling --------------------------------------------------------------------------------------


def sampling(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    draws: torch.Tensor,
) -> torch.Tensor:
    """A token for each row: the greatest logit, the first of equals, where the temperature is below
    ``GREEDY_TEMPERATURE``; else the first token, in the order of the vocabulary, up to which the
    weights sum to more than ``draw`` of them all. A weight is ``exp((logit - greatest) /
    temperature)``; top-k, then min-p, then top-p set weights to 0, of equal ones all or none.

    Args:
        logits: ``[rows, vocabulary]`` float32, after all edits; -inf is impossible, and the
            greatest of a row is finite.
        temperature: ``[rows]`` float32.
        top_k: ``[rows]`` int64: what is less than the k-th greatest goes; 0 is off.
        top_p: ``[rows]`` float64: what is not in the smallest set of best tokens that has this part
            of the weight that is left goes; 1 is off.
        min_p: ``[rows]`` float32: what weighs less than this part of the best token goes; 0 is off.
        draws: ``[rows]`` float64 in [0, 1), from the generator of each row.

    Returns:
        ``[rows]`` int64.
    """
    tokens = logits.argmax(dim=-1)
    for row in (temperature >= GREEDY_TEMPERATURE).nonzero().flatten().tolist():
        weights = sampling_weights(
            logits[row],
            float(temperature[row]),
            int(top_k[row]),
            float(top_p[row]),
            float(min_p[row]),
        )
        running = weights.cumsum(0)
        tokens[row] = torch.searchsorted(running, draws[row] * running[-1], right=True)
    return tokens


def sampling_weights(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """The weights of one row's tokens, ``[vocabulary]`` float64, as ``sampling`` says."""
    weights = torch.exp((logits.double() - logits.max()) / temperature)
    if 0 < top_k < len(weights):
        weights[logits < logits.topk(top_k).values[-1]] = 0.0
    weights[weights < min_p] = 0.0
    if top_p < 1.0:
        ordered = weights.sort(descending=True).values
        before = ordered.cumsum(0) - ordered
        size = max(1, int((before < top_p * ordered.sum()).sum()))
        weights[weights < ordered[size - 1]] = 0.0
    return weights


REFERENCES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "rms_norm": rms_norm,
        "gemma_rms_norm": gemma_rms_norm,
        "silu_and_mul": silu_and_mul,
        "gelu_and_mul": gelu_and_mul,
        "rotary_embedding": rotary_embedding,
        "partial_rotary_embedding": rotary_embedding,
        "embedding": embedding,
        "linear": linear,
        "kv_write": kv_write,
        "paged_attention_decode": paged_attention_decode,
        "paged_attention_prefill": paged_attention_prefill,
        "logits": logits,
        "sampling": sampling,
    }
)
