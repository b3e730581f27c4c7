"""The attention backend ``triton``: cache writes, decoding and prompts by Triton's kernels, over
the same cache as ``hookserve.ops.paged_attention``'s, which is its twin.

Chosen by itself on a CUDA device. Kernels, and with them Triton, are imported when a layer has
chosen it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hookserve.ops.attention_backend import AttentionBackend, AttentionImpl, check_kv_cache
from hookserve.ops.context import AttentionMetadata

from .availability import DTYPES, why_not

MAX_HEAD_SIZE = 256
"""Of larger heads a program's sums do not fit into its registers."""


class TritonAttentionBackend(AttentionBackend):
    """The built-in backend for GPUs, under the name ``triton``."""

    supported_dtypes = DTYPES

    @staticmethod
    def get_name() -> str:
        return "triton"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return TritonAttentionImpl

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size <= MAX_HEAD_SIZE

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_logits_soft_cap(cls) -> bool:
        return True

    @classmethod
    def validate_configuration(cls, *args: Any, **kwargs: Any) -> list[str]:
        lacking = super().validate_configuration(*args, **kwargs)
        # A model is built with its device as the default one.
        reason = why_not(torch.get_default_device())
        if reason is not None:
            lacking.append(f"this start: {reason}")
        return lacking


@dataclass(slots=True)
class _Step:
    """What the kernels are told of a step, on its device."""

    lengths: torch.Tensor
    """``[num_reqs]`` int32."""
    starts: torch.Tensor
    """``[num_reqs + 1]`` int32."""
    longest_decode: int
    """Of the sequences that decode, 0 if there are none."""
    most_new: int
    """Tokens of one sequence."""


class TritonAttentionImpl(AttentionImpl):
    """Hands a layer's tensors and the step's numbers to the kernels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        from .cache_writes import write_cache
        from .paged_attention_decode import attend_decode
        from .paged_attention_prefill import attend_prefill

        self._write = write_cache
        self._attend_decode, self._attend_prefill = attend_decode, attend_prefill

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        check_kv_cache(TritonAttentionBackend, kv_cache, self.num_kv_heads, self.head_size)

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
        assert output is not None, "the class says that it writes it"
        metadata, step = attn_metadata, _step(attn_metadata)
        self._write(kv_cache, key, value, metadata.slot_mapping)
        decodes = metadata.num_decode_reqs
        if decodes:
            self._attend_decode(
                query[:decodes],
                kv_cache,
                metadata.block_tables[:decodes],
                step.lengths[:decodes],
                output[:decodes],
                self.scale,
                longest=step.longest_decode,
                window=self.sliding_window,
                soft_cap=self.logits_soft_cap,
            )
        if decodes < metadata.num_reqs:
            self._attend_prefill(
                query,
                kv_cache,
                metadata.block_tables[decodes:],
                step.starts[decodes:],
                step.lengths[decodes:],
                output,
                self.scale,
                most=step.most_new,
                window=self.sliding_window,
                soft_cap=self.logits_soft_cap,
            )
        return output


def _step(metadata: AttentionMetadata) -> _Step:
    """Made by the first layer of a step."""
    held: _Step | None = metadata.cache.get(_Step)
    if held is None:
        decodes, starts = metadata.num_decode_reqs, metadata.query_start_loc
        device = metadata.block_tables.device
        held = metadata.cache[_Step] = _Step(
            torch.tensor(metadata.seq_lens, dtype=torch.int32, device=device),
            torch.tensor(starts, dtype=torch.int32, device=device),
            max(metadata.seq_lens[:decodes], default=0),
            max(end - start for start, end in itertools.pairwise(starts)),
        )
    return held
