"""The attention backend ``compiled``: by kernels, straight from the paged cache.

Chosen by itself where there are kernels and the layer is of a kind that they take; ``cpu_kernels``
says what that is.
"""

from __future__ import annotations

from typing import Any

import torch

from .attention_backend import AttentionImpl
from .context import AttentionMetadata, get_kernels
from .cpu_kernels import LANES, MAX_HEAD_SIZE
from .paged_attention import PagedAttentionBackend, PagedAttentionImpl


class CompiledAttentionBackend(PagedAttentionBackend):
    """The built-in backend for bfloat16 on a CPU with a C compiler, under the name
    ``compiled``."""

    supported_dtypes = (torch.bfloat16,)

    @staticmethod
    def get_name() -> str:
        return "compiled"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return CompiledAttentionImpl

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % (2 * LANES) == 0 and head_size <= MAX_HEAD_SIZE

    @classmethod
    def validate_configuration(cls, *args: Any, **kwargs: Any) -> list[str]:
        lacking = super().validate_configuration(*args, **kwargs)
        if get_kernels() is None:
            lacking.append("a machine or a start without compiled kernels")
        return lacking


class CompiledAttentionImpl(PagedAttentionImpl):
    """Writes to the cache and attends by ``CpuKernels``."""

    keeps_copies = False
    can_be_provided = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kernels = get_kernels()
        assert kernels is not None, "the backend was validated"
        self._kernels = kernels

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        super().bind_kv_cache(kv_cache)
        self._cache = kv_cache

    def _write(self, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata) -> None:
        self._kernels.write_cache(self._cache, key, value, metadata.slot_mapping)

    def _decode(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        del key, value  # the cache has them
        return self._kernels.attend_decode(
            query,
            self._cache,
            metadata,
            self.scale,
            window=self.sliding_window,
            soft_cap=self.logits_soft_cap,
        )

    def _prefill(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        index: int,
        metadata: AttentionMetadata,
    ) -> None:
        if self.scale <= 0:
            super()._prefill(query, key, value, output, index, metadata)
            return
        window, cap = self.sliding_window, self.logits_soft_cap
        self._kernels.attend_prefill(
            query, self._cache, metadata, index, output, self.scale, window=window, soft_cap=cap
        )
