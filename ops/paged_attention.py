"""The built-in attention backend: over a paged KV cache, in plain torch for the CPU.

A layer's cache is ``[num_blocks, 2, kv_heads, block_size, head_size]``: what one head keeps of a
block lies together, so that gathering a sequence's blocks leaves each head's keys in one piece.
What depends only on the step (which rows to gather, masks) is made by the first layer of the step
and kept in ``AttentionMetadata.cache``. Which blocks belong to whom is the engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hookserve.hookspecs.as_written import AsWritten

from .attention_backend import AttentionBackend, AttentionImpl, check_kv_cache
from .attention_kernels import (
    attend,
    decode_by_matmul,
    decode_capped,
    prefill_by_matmul,
    prefill_capped,
)
from .context import AttentionMetadata, get_model_context
from .decode_groups import DecodeGroup, KeptGroups, make_groups
from .packed_linear import can_pack

_GATHER_LIMIT_BYTES = 32 << 20
# A group's gathered keys and values; more would only leave the cache before it is used.
_KEPT_PART = 2
# Layers keep gathered copies of decoding sequences up to the size of the cache over this.

Gathered = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, ``[n, kv_heads, positions, head_size]`` each."""


@dataclass(slots=True)
class _Copies:
    """A layer's own gathered copies, and which step of which groups they have followed to."""

    groups: KeptGroups
    step: int
    parts: list[Gathered]
    """By group."""


class PagedAttentionBackend(AttentionBackend):
    """The built-in backend, under the name ``paged``."""

    @staticmethod
    def get_name() -> str:
        return "paged"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return PagedAttentionImpl

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_logits_soft_cap(cls) -> bool:
        return True


class PagedAttentionImpl(AttentionImpl):
    """Gathers the blocks of each sequence, and attends with torch's own products."""

    writes_output = False
    keeps_copies: ClassVar[bool] = True
    """Whether decoding keeps gathered copies from step to step."""
    can_be_provided: ClassVar[bool] = True
    """Whether providers of the ops of attention may take the place of this class's own functions; a
    subclass states it for itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group_size = self.num_heads // self.num_kv_heads
        context = get_model_context()
        self.dtype = context.dtype if context else torch.get_default_dtype()
        # Only bfloat16 on a CPU gains from the products: in float32 both ways cost the same. A
        # model is built with its device as the default one.
        self.by_matmul = (
            self.dtype is torch.bfloat16
            and torch.get_default_device().type == "cpu"
            and self.logits_soft_cap is None
            and can_pack(self.dtype)[0]
        )

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        check_kv_cache(PagedAttentionBackend, kv_cache, self.num_kv_heads, self.head_size)
        self._block_bytes = kv_cache[0].numel() * kv_cache.element_size()
        self._rows = kv_cache.view(-1, self.head_size)
        pages = kv_cache.view(-1, kv_cache.shape[-2] * self.head_size)
        # The values of a block lie a fixed number of pages after its keys.
        self._key_pages, self._value_pages = pages, pages[self.num_kv_heads :]
        # Memory of a CPU that is never written to is never mapped; elsewhere no copies are kept.
        keeps_copies = self.keeps_copies and kv_cache.is_cpu
        count = len(self._rows) // (2 * _KEPT_PART) if keeps_copies else 0
        self._kept_rows = tuple(self._rows.new_empty(count, self.head_size) for _ in "kv")
        self._copies: _Copies | None = None

    def forward(
        self,
        layer: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: AttentionMetadata,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        metadata = attn_metadata
        query = query.view(-1, self.num_kv_heads, self.group_size, self.head_size)
        self._write(key, value, metadata)
        decodes = metadata.num_decode_reqs
        if decodes == metadata.num_reqs:
            return self._decode(query, key, value, metadata)
        attended = query.new_empty(query.shape)
        if decodes:
            decoded = self._decode(query[:decodes], key[:decodes], value[:decodes], metadata)
            attended[:decodes] = decoded.view(attended[:decodes].shape)
        for index in range(decodes, metadata.num_reqs):
            rows = slice(*metadata.query_start_loc[index : index + 2])
            self._prefill(query[rows], key[rows], value[rows], attended[rows], index, metadata)
        return attended

    # -- the cache ------------------------------------------------------------------------------

    def _write(self, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata) -> None:
        name = ("write", self.num_kv_heads)
        slots = metadata.cache.get(name)
        if slots is None:
            slots = metadata.cache[name] = self._slots(metadata)
        self._rows.index_copy_(0, slots[0], key.reshape(-1, self.head_size))
        self._rows.index_copy_(0, slots[1], value.reshape(-1, self.head_size))

    def _slots(self, metadata: AttentionMetadata) -> tuple[torch.Tensor, torch.Tensor]:
        """For each token and key head the row of the cache, ``[tokens * kv_heads]`` for keys and
        for values, where rows are numbered through all of ``[num_blocks, 2, kv_heads,
        block_size]``."""
        size = metadata.block_size
        heads = torch.arange(self.num_kv_heads, device=metadata.slot_mapping.device) * size
        first = metadata.slot_mapping // size * (2 * self.num_kv_heads * size)
        keys = ((first + metadata.slot_mapping % size)[:, None] + heads).view(-1)
        return keys, keys + self.num_kv_heads * size

    def _pages(self, blocks: torch.Tensor) -> torch.Tensor:
        """Where the keys of ``blocks: [n, num_blocks]`` lie, ``[n * kv_heads * num_blocks]``;
        pages are numbered through all of ``[num_blocks, 2, kv_heads]``."""
        heads = torch.arange(self.num_kv_heads, device=blocks.device)[:, None]
        return (blocks[:, None] * (2 * self.num_kv_heads) + heads).view(-1)

    def _gather(self, pages: torch.Tensor, into: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Copy keys and values of the pages; valid until the next gather of the step."""
        torch.index_select(self._key_pages, 0, pages, out=into[0])
        torch.index_select(self._value_pages, 0, pages, out=into[1])

    def _gather_buffers(
        self, num_pages: int, cache: dict[Any, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[num_pages, page]`` each. All layers of the step use the same memory: fresh memory of
        this size costs more than the copy into it."""
        page = self._key_pages.shape[1]
        name = ("gathered", page, self.dtype)
        held = cache.get(name)
        if held is None or held[0].shape[0] < num_pages:
            held = cache[name] = tuple(self._key_pages.new_empty(num_pages, page) for _ in "kv")
        return held[0][:num_pages], held[1][:num_pages]

    # -- one new token a sequence ---------------------------------------------------------------

    def _decode(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """``query: [num_decode_reqs, kv_heads, group, head_size]`` to
        ``[num_decode_reqs, num_heads * head_size]``."""
        copies = self._follow(key, value, metadata)
        groups = self._decode_groups(metadata) if copies is None else copies.groups.groups
        if groups[0].rows is None:
            group = groups[0]
            gathered = copies.parts[0] if copies else self._gather_group(group, metadata)
            return self._decode_group(query, key, gathered, group)
        output = query.new_empty(query.shape[0], self.num_heads * self.head_size)
        for at, group in enumerate(groups):
            gathered = copies.parts[at] if copies else self._gather_group(group, metadata)
            output[group.rows] = self._decode_group(
                query[group.rows], key[group.rows], gathered, group
            )
        return output

    def _decode_group(
        self, query: torch.Tensor, key: torch.Tensor, gathered: Gathered, group: DecodeGroup
    ) -> torch.Tensor:
        keys, values = gathered
        # For one sequence the fused call is the faster one: it needs no mask.
        if group.mask is None:
            keys, values = keys[:, :, group.seen], values[:, :, group.seen]
        elif self.by_matmul:
            return decode_by_matmul(query, key, keys, values, self.scale, group.mask)
        if self.logits_soft_cap is not None:
            return decode_capped(query, keys, values, self.scale, self.logits_soft_cap, group.mask)
        # A key head's queries stand where the tokens of a prompt would.
        attended = attend(query, keys, values, self.scale, mask=group.mask)
        return attended.reshape(query.shape[0], -1)

    def _decode_groups(self, metadata: AttentionMetadata) -> list[DecodeGroup]:
        """The step's groups for layers that keep no copies."""
        name = ("decode", self.num_kv_heads, self.head_size, self.dtype, self.sliding_window)
        groups: list[DecodeGroup] | None = metadata.cache.get(name)
        if groups is None:
            limit = _GATHER_LIMIT_BYTES // self._block_bytes
            groups = make_groups(metadata, self._seen_from, limit, self.dtype)
            metadata.cache[name] = groups
        return groups

    def _seen_from(self, length: int, new_tokens: int = 1) -> int:
        """The first position that any of a sequence's ``new_tokens`` last tokens sees."""
        return (
            0
            if self.sliding_window is None
            else max(0, length - new_tokens + 1 - self.sliding_window)
        )

    def _gather_group(self, group: DecodeGroup, metadata: AttentionMetadata) -> Gathered:
        """Gather into memory that all layers of the step share."""
        name = ("gathered", id(group))
        held: tuple[torch.Tensor, Gathered, Gathered] | None = metadata.cache.get(name)
        if held is None:
            pages = self._pages(group.blocks)
            keys, values = self._gather_buffers(pages.numel(), metadata.cache)
            shape = (group.num_rows, self.num_kv_heads, -1, self.head_size)
            held = pages, (keys, values), (keys.view(shape), values.view(shape))
            metadata.cache[name] = held
        pages, into, gathered = held
        self._gather(pages, into)
        return gathered

    # -- copies that are kept -------------------------------------------------------------------

    def _follow(
        self, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> _Copies | None:
        """This layer's copies of the decoding sequences, the step's tokens included; ``None``
        where none are kept."""
        if metadata.decode_memory is None or self.sliding_window is not None:
            return None
        name = ("kept", self.num_kv_heads, self.head_size, self.dtype)
        if name not in metadata.cache:
            metadata.cache[name] = metadata.decode_memory.find(
                name, metadata, self.num_kv_heads, self.dtype, len(self._kept_rows[0])
            )
        kept: KeptGroups | None = metadata.cache[name]
        if kept is None:
            return None
        copies = self._copies
        if kept.step == 0:
            copies = self._copies = _Copies(kept, 0, self._gather_kept(kept, metadata))
        elif copies is None or copies.groups is not kept or copies.step != kept.step - 1:
            return None  # this layer was left out of a step
        else:
            copies.step = kept.step
            keys, values = self._kept_rows
            keys.index_copy_(0, kept.new_rows, key.reshape(-1, self.head_size))
            values.index_copy_(0, kept.new_rows, value.reshape(-1, self.head_size))
        return copies

    def _gather_kept(self, kept: KeptGroups, metadata: AttentionMetadata) -> list[Gathered]:
        parts, start = [], 0
        page = self._key_pages.shape[1]
        for group in kept.groups:
            name = ("kept pages", id(group))
            pages = metadata.cache.get(name)
            if pages is None:
                pages = metadata.cache[name] = self._pages(group.blocks)
            end = start + pages.numel() * metadata.block_size
            keys, values = (rows[start:end] for rows in self._kept_rows)
            self._gather(pages, (keys.view(-1, page), values.view(-1, page)))
            shape = (group.num_rows, self.num_kv_heads, -1, self.head_size)
            parts.append((keys.view(shape), values.view(shape)))
            start = end
        return parts

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
        """Attend with the ``n`` new tokens of request ``index`` and fill ``output``, which has
        the query's shape ``[n, kv_heads, group, head_size]``."""
        n, length = query.shape[0], metadata.seq_lens[index]
        start = self._seen_from(length, n)
        if n == length:
            keys, values = key.transpose(0, 1), value.transpose(0, 1)
        else:
            pages = self._request_pages(index, start, metadata)
            gathered = self._gather_buffers(pages.numel(), metadata.cache)
            self._gather(pages, gathered)
            shape = (self.num_kv_heads, -1, self.head_size)
            skipped = start // metadata.block_size * metadata.block_size
            seen = slice(start - skipped, length - skipped)
            keys, values = (part.view(shape)[:, seen] for part in gathered)
        is_limited = self.sliding_window is not None and self.sliding_window < length
        if self.by_matmul and not is_limited:
            keys, values = keys.contiguous(), values.contiguous()
            prefill_by_matmul(query, keys, values, self.scale, output, metadata.cache)
            return
        window = self.sliding_window if is_limited else None
        is_causal = n == length and window is None and self.logits_soft_cap is None
        mask = None
        if n > 1 and not is_causal:
            mask = _chunk_mask(index, n, length - start, window, query, metadata.cache)
        if self.logits_soft_cap is not None:
            prefill_capped(query, keys, values, self.scale, self.logits_soft_cap, mask, output)
            return
        expanded = (self.num_kv_heads, self.group_size, length - start, self.head_size)
        attended = attend(
            query.permute(1, 2, 0, 3),
            keys[:, None].expand(expanded),
            values[:, None].expand(expanded),
            self.scale,
            mask=mask,
            is_causal=is_causal,
        )  # [kv_heads, group, n, head_size]
        output.copy_(attended.permute(2, 0, 1, 3))

    def _request_pages(self, index: int, start: int, metadata: AttentionMetadata) -> torch.Tensor:
        """The pages of request ``index`` from the block of position ``start`` on."""
        first = start // metadata.block_size
        name = ("pages", index, first, self.num_kv_heads)
        pages = metadata.cache.get(name)
        if pages is None:
            end = -(-metadata.seq_lens[index] // metadata.block_size)
            pages = self._pages(metadata.block_tables[index : index + 1, first:end])
            metadata.cache[name] = pages
        return pages


AS_WRITTEN = AsWritten(PagedAttentionBackend, PagedAttentionImpl)
"""What another built-in backend stands in for."""


def _chunk_mask(
    index: int, n: int, length: int, window: int | None, like: torch.Tensor, cache: dict[Any, Any]
) -> torch.Tensor:
    """``[n, length]`` for the last ``n`` of ``length`` tokens: hides from each what comes after
    it, and what has left its window. Of the type of ``like``, and where that is."""
    name = ("chunk mask", index, window, like.dtype)
    mask: torch.Tensor | None = cache.get(name)
    if mask is None:
        hidden = like.new_full((n, length), float("-inf"))
        if window is None:
            mask = hidden.triu_(length - n + 1)
        else:
            mask = hidden.triu(length - n + 1).add_(hidden.tril_(length - n - window))
        cache[name] = mask
    return mask
