"""Attention over a paged KV cache, in plain torch for the CPU.

A layer's cache is ``[num_blocks, block_size, 2, kv_heads, head_size]``: the keys and values of a
token lie together, so that a block is gathered by one copy. What depends only on the step (which
blocks to gather, masks) is made by the first layer of the step and kept in
``AttentionMetadata.cache``. Which blocks belong to whom is the engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .context import AttentionMetadata, get_forward_context, get_model_context
from .kv_cache_spec import FullAttentionSpec

_GROUP_OVERHEAD_BLOCKS = 20
# One more call for a group of sequences costs about as much time as attending to 20 blocks of
# padding (measured: 40 us a call, 2 us a block of 16 tokens, 3 heads of 64).
_GATHER_LIMIT_BYTES = 32 << 20
# A group's gathered keys and values; more would only leave the cache before it is used.


@dataclass(slots=True)
class _DecodeGroup:
    """Sequences whose one new token attends in one call, padded to the longest of them."""

    rows: torch.Tensor | None
    """``[n]``: their rows in the batch; ``None``: all decode rows in order."""
    blocks: torch.Tensor
    """``[n * max_blocks]`` block numbers."""
    num_reqs: int
    num_positions: int
    """Positions attended to, the padding within the last block included if ``mask`` hides it."""
    mask: torch.Tensor | None
    """``[n, 1, 1, num_positions]``, 0 or -inf; ``None`` for a single sequence."""


class Attention(nn.Module):
    """Causal self-attention of one layer, with grouped key heads."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        cache_config: Any = None,
        quant_config: Any = None,
        logits_soft_cap: float | None = None,
        per_layer_sliding_window: int | None = None,
        prefix: str = "",
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        super().__init__()
        _refuse(
            prefix,
            alibi_slopes=alibi_slopes,
            logits_soft_cap=logits_soft_cap,
            per_layer_sliding_window=per_layer_sliding_window,
            kv_sharing_target_layer_name=kv_sharing_target_layer_name,
            attn_type=None if attn_type == "decoder" else attn_type,
        )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"{prefix}: {num_heads} heads are not a multiple of {self.num_kv_heads} key heads"
            )
        self.group_size = num_heads // self.num_kv_heads
        self.layer_name = prefix
        self.attn_type = attn_type
        context = get_model_context()
        self.dtype = context.dtype if context else torch.get_default_dtype()
        self.block_size = context.block_size if context else getattr(cache_config, "block_size", 16)
        self.kv_cache = torch.empty(0)
        if context is not None:
            if prefix in context.static_forward_context:
                raise ValueError(f"two attention layers have the prefix {prefix!r}")
            context.static_forward_context[prefix] = self

    def get_kv_cache_spec(self, vllm_config: Any) -> FullAttentionSpec:
        """The cache that this layer needs, from ``vllm_config.cache_config.block_size``."""
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            dtype=self.dtype,
        )

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of the tensor to give to ``bind_kv_cache``."""
        return (num_blocks, block_size, 2, self.num_kv_heads, self.head_size)

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Use ``kv_cache`` from now on. It must start out finite (zeros): positions that are
        masked out are multiplied by zero."""
        expected = self.kv_cache_shape(kv_cache.shape[0], kv_cache.shape[1])
        if tuple(kv_cache.shape) != expected or not kv_cache.is_contiguous():
            raise ValueError(
                f"{self.layer_name}: a contiguous KV cache of shape {expected} is needed, not "
                f"{tuple(kv_cache.shape)}"
            )
        self.kv_cache = kv_cache

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend, and append the step's keys and values to the cache.

        Args:
            query: ``[tokens, num_heads * head_size]``; rows may be strided.
            key: ``[tokens, num_kv_heads * head_size]``, as ``value``.

        Returns:
            ``[tokens, num_heads * head_size]``; zeros while profiling.
        """
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return torch.zeros_like(query, memory_format=torch.contiguous_format)
        self._write(key, value, metadata.slot_mapping)
        decodes = metadata.num_decode_reqs
        if decodes == metadata.num_reqs:
            return self._decode(query, metadata)
        output = query.new_empty(query.shape)
        if decodes:
            output[:decodes] = self._decode(query[:decodes], metadata)
        for index in range(decodes, metadata.num_reqs):
            start, end = metadata.query_start_loc[index : index + 2]
            self._prefill(
                query[start:end],
                key[start:end],
                value[start:end],
                output[start:end],
                index,
                metadata,
            )
        return output

    def _write(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        width = self.num_kv_heads * self.head_size
        tokens = self.kv_cache.view(-1, 2, width)  # [num_blocks * block_size, 2, width]
        tokens[:, 0].index_copy_(0, slots, key.reshape(-1, width))
        tokens[:, 1].index_copy_(0, slots, value.reshape(-1, width))

    # -- one new token a sequence ---------------------------------------------------------------

    def _decode(self, query: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """``query: [num_decode_reqs, num_heads * head_size]`` to the same shape."""
        groups = metadata.cache.get("decode_groups")
        if groups is None:
            groups = metadata.cache["decode_groups"] = self._decode_groups(metadata)
        if groups[0].rows is None:
            return self._decode_group(query, groups[0], metadata)
        output = query.new_empty(query.shape)
        for group in groups:
            result = self._decode_group(query[group.rows], group, metadata)
            output[group.rows] = result
        return output

    def _decode_group(
        self, query: torch.Tensor, group: _DecodeGroup, metadata: AttentionMetadata
    ) -> torch.Tensor:
        n, positions = group.num_reqs, group.num_positions
        keys, values = self._gather(group.blocks, metadata)
        # A key head's queries stand where a longer prompt's tokens would: [n, kv_heads, group, d].
        heads = query.view(n, self.num_kv_heads, self.group_size, self.head_size)
        attended = F.scaled_dot_product_attention(
            heads,
            keys.view(n, -1, *keys.shape[1:])[:, :positions].transpose(1, 2),
            values.view(n, -1, *keys.shape[1:])[:, :positions].transpose(1, 2),
            attn_mask=group.mask,
            scale=self.scale,
        )
        return attended.reshape(n, -1)

    def _gather(
        self, blocks: torch.Tensor, metadata: AttentionMetadata
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the blocks: ``[positions, kv_heads, head_size]`` each, valid until
        the next gather of the step."""
        block = self.kv_cache[0].numel()
        size = blocks.numel() * block
        buffer = metadata.cache.get("gathered")
        if buffer is None or buffer.numel() < size or buffer.dtype != self.kv_cache.dtype:
            # One buffer for all layers: fresh memory of this size costs more than the copy.
            buffer = metadata.cache["gathered"] = self.kv_cache.new_empty(size)
        gathered = buffer[:size].view(blocks.numel(), block)
        torch.index_select(self.kv_cache.view(-1, block), 0, blocks, out=gathered)
        tokens = gathered.view(-1, 2, self.num_kv_heads, self.head_size)
        return tokens[:, 0], tokens[:, 1]

    def _decode_groups(self, metadata: AttentionMetadata) -> list[_DecodeGroup]:
        block_bytes = self.kv_cache[0].numel() * self.kv_cache.element_size()
        num_blocks = [
            -(-length // metadata.block_size)
            for length in metadata.seq_lens[: metadata.num_decode_reqs]
        ]
        groups = split_by_length(num_blocks, _GATHER_LIMIT_BYTES // block_bytes)
        return [_make_group(rows, len(groups) == 1, metadata, self.dtype) for rows in groups]

    # -- several new tokens ---------------------------------------------------------------------

    def _prefill(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        index: int,
        metadata: AttentionMetadata,
    ) -> None:
        """Attend with the ``n`` new tokens of request ``index`` and fill ``output: [n, ...]``."""
        n, length = query.shape[0], metadata.seq_lens[index]
        mask = None
        if n == length:
            keys = key.view(n, self.num_kv_heads, self.head_size)
            values = value.view(n, self.num_kv_heads, self.head_size)
        else:
            blocks, mask = _chunk_shape(index, n, metadata, query.dtype)
            keys, values = (part[:length] for part in self._gather(blocks, metadata))
        heads = (self.num_kv_heads, self.group_size, self.head_size)
        shape = (self.num_kv_heads, self.group_size, length, self.head_size)
        attended = F.scaled_dot_product_attention(
            query.view(n, *heads).permute(1, 2, 0, 3),
            keys.transpose(0, 1)[:, None].expand(shape),
            values.transpose(0, 1)[:, None].expand(shape),
            attn_mask=mask,
            is_causal=n == length,
            scale=self.scale,
        )  # [kv_heads, group, n, head_size]
        output.view(n, *heads).copy_(attended.permute(2, 0, 1, 3))


def split_by_length(num_blocks: list[int], limit: int) -> list[list[int]]:
    """Split rows into groups that are padded to their longest member.

    Rows are taken from the longest on; a group ends when its padding would cost more than
    another call, or when it would gather more than ``limit`` blocks.
    """
    order = sorted(range(len(num_blocks)), key=lambda row: -num_blocks[row])
    groups: list[list[int]] = []
    longest = waste = 0
    for row in order:
        waste += longest - num_blocks[row]
        if not groups or waste > _GROUP_OVERHEAD_BLOCKS or longest * (len(groups[-1]) + 1) > limit:
            groups.append([])
            longest, waste = num_blocks[row], 0
        groups[-1].append(row)
    return groups


def _make_group(
    rows: list[int], is_only: bool, metadata: AttentionMetadata, dtype: torch.dtype
) -> _DecodeGroup:
    if is_only:
        rows = sorted(rows)
    lengths = [metadata.seq_lens[row] for row in rows]
    max_blocks = -(-max(lengths) // metadata.block_size)
    index = torch.tensor(rows)
    tables = metadata.block_tables[: len(rows)] if is_only else metadata.block_tables[index]
    positions, mask = max(lengths), None
    if len(rows) > 1:
        positions = max_blocks * metadata.block_size
        hidden = torch.arange(positions) >= torch.tensor(lengths)[:, None]  # [n, positions]
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
        mask = mask[:, None, None]
    return _DecodeGroup(
        rows=None if is_only else index,
        blocks=tables[:, :max_blocks].reshape(-1),
        num_reqs=len(rows),
        num_positions=positions,
        mask=mask,
    )


def _chunk_shape(
    index: int, n: int, metadata: AttentionMetadata, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Blocks of request ``index``, and the mask ``[n, length]`` that hides what comes later."""
    kept = metadata.cache.get(("chunk", index))
    if kept is None:
        length = metadata.seq_lens[index]
        blocks = metadata.block_tables[index, : -(-length // metadata.block_size)]
        mask = None
        if n > 1:
            mask = torch.full((n, length), float("-inf"), dtype=dtype).triu_(length - n + 1)
        kept = metadata.cache[("chunk", index)] = (blocks, mask)
    return kept


def _refuse(prefix: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"attention layer {prefix!r}: {name}={value!r} is not supported; plain causal "
                "decoder attention is"
            )
