"""Writing to the cache and attention as ops: rows of the table for each attention backend, and
providers in the places of a built-in backend's own functions.

A backend is one way to compute the three ops of ``ATTENTION_OPS``; a provider takes the place of
one of them where the backend's cache is laid out as the op's definition says (``op_references``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hookserve.hookspecs.current_host import describe_patch

from .attention_backend import AttentionBackend, AttentionImpl
from .context import AttentionMetadata, get_ops
from .op_function import OpFunction
from .paged_attention import AS_WRITTEN, PagedAttentionImpl

ATTENTION_OPS = ("kv_write", "paged_attention_decode", "paged_attention_prefill")


@dataclass(slots=True)
class AttentionOps:
    """The three ops of a layer, in the order of ``ATTENTION_OPS``."""

    write: OpFunction
    decode: OpFunction
    prefill: OpFunction

    def give_up(self) -> None:
        """A layer computes by another backend instead."""
        for each in (self.write, self.decode, self.prefill):
            each.row.built -= 1

    def note_call(self, metadata: AttentionMetadata) -> None:
        """Count what a layer computes in a step."""
        self.write.row.calls += 1
        if metadata.num_decode_reqs:
            self.decode.row.calls += 1
        if metadata.num_decode_reqs < metadata.num_reqs:
            self.prefill.row.calls += 1


def take_attention_ops(backend: type[AttentionBackend]) -> AttentionOps | None:
    """The ops of one more layer that computes with ``backend``; ``None`` outside of a model, or in
    one that is built without a choice of ops.

    Raises:
        ValueError: the operator names providers, and the backend takes none.
        hookserve.hookspecs.HostError: one that must work does not.
    """
    ops = get_ops()
    if ops is None:
        return None
    obstacle = _obstacle(backend)
    found = [ops.attention_function(op, backend, obstacle) for op in ATTENTION_OPS]
    for each in found:
        each.row.built += 1
    return AttentionOps(*found)


def _obstacle(backend: type[AttentionBackend]) -> str | None:
    """Why no provider can take the place of the backend's functions, if there is a reason."""
    if not vars(backend.get_impl_cls()).get("can_be_provided"):
        return f"the attention backend '{backend.get_name()}' computes that itself"
    patched = AS_WRITTEN.replaced()
    return None if patched is None else describe_patch(patched)


def impl_class(backend: type[AttentionBackend], ops: AttentionOps | None) -> type[AttentionImpl]:
    """The backend's class, or one that asks providers first, if there are any."""
    found = backend.get_impl_cls()
    if ops is None or not any(each.provided for each in (ops.write, ops.decode, ops.prefill)):
        return found
    return type(f"Provided{found.__name__}", (_Provided, found), {"ops": ops})


class _Provided(PagedAttentionImpl):
    """Put before a class of a built-in backend, whose functions compute what providers do not
    take."""

    ops: AttentionOps

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        super().bind_kv_cache(kv_cache)
        self._whole_cache = kv_cache

    def _write(self, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata) -> None:
        write = self.ops.write.provided
        if write is not None:
            answer = write(self._whole_cache, key, value, metadata.slot_mapping)
            if answer is not NotImplemented:
                return
        super()._write(key, value, metadata)

    def _decode(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        decode = self.ops.decode.provided
        if decode is not None:
            count = query.shape[0]
            answer: torch.Tensor = decode(
                query.reshape(count, self.num_heads, self.head_size),
                self._whole_cache,
                metadata.block_tables[:count],
                _lengths(metadata)[:count],
                self.scale,
                self.sliding_window,
                self.logits_soft_cap,
            )
            if answer is not NotImplemented:
                return answer.reshape(count, -1)
        return super()._decode(query, key, value, metadata)

    def _prefill(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        index: int,
        metadata: AttentionMetadata,
    ) -> None:
        prefill = self.ops.prefill.provided
        if prefill is not None:
            count = query.shape[0]
            answer: Any = prefill(
                query.reshape(count, self.num_heads, self.head_size),
                self._whole_cache,
                metadata.block_tables[index : index + 1],
                _lengths(metadata)[index : index + 1],
                _starts(count, metadata),
                self.scale,
                self.sliding_window,
                self.logits_soft_cap,
            )
            if answer is not NotImplemented:
                output.copy_(answer.reshape(output.shape))
                return
        super()._prefill(query, key, value, output, index, metadata)


def _lengths(metadata: AttentionMetadata) -> torch.Tensor:
    """Of the step's sequences, ``[num_reqs]`` int64, where their blocks' numbers are."""
    held: torch.Tensor | None = metadata.cache.get("lengths")
    if held is None:
        device = metadata.block_tables.device
        held = metadata.cache["lengths"] = torch.tensor(metadata.seq_lens, device=device)
    return held


def _starts(count: int, metadata: AttentionMetadata) -> torch.Tensor:
    """``[0, count]`` int64: the rows of a single sequence."""
    name = ("starts", count)
    held: torch.Tensor | None = metadata.cache.get(name)
    if held is None:
        device = metadata.block_tables.device
        held = metadata.cache[name] = torch.tensor([0, count], device=device)
    return held
