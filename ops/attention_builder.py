"""Backends that are given metadata of their own: what describes a step to them, the builder that
they make theirs with, and what a layer does before such a backend computes.

The names are the ecosystem's. A backend without a builder is given ``context.AttentionMetadata``
as it is, and none of this runs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .context import AttentionMetadata

if TYPE_CHECKING:
    from .attention import Attention
    from .attention_backend import AttentionBackend
    from .kv_cache_spec import KVCacheSpec


class AttentionCGSupport(Enum):
    """For which steps what a builder makes could be part of a captured graph."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


@dataclass(frozen=True)
class MultipleOf:
    """Block sizes: all multiples of ``base``."""

    base: int


@dataclass
class CommonAttentionMetadata:
    """One step's batch. Rows are flattened tokens: those of request ``i`` are
    ``[query_start_loc[i], query_start_loc[i + 1])``. Requests with one token come first."""

    query_start_loc: torch.Tensor
    """``[num_reqs + 1]`` int32, on the device."""
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    """``[num_reqs]`` int32, on the device: tokens of context, this step's included."""
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    """``[num_reqs, max_blocks]`` int32, rows padded with 0."""
    slot_mapping: torch.Tensor
    """``[num_actual_tokens]`` int64: ``block * block_size + offset`` of each token."""
    causal: bool = True

    @property
    def seq_lens_cpu(self) -> torch.Tensor:
        return self.seq_lens.cpu()

    @property
    def num_computed_tokens_cpu(self) -> torch.Tensor:
        """``[num_reqs]``: tokens of context before this step's."""
        return self.seq_lens_cpu - self.query_start_loc_cpu.diff()

    def replace(self, **changes: Any) -> CommonAttentionMetadata:
        return dataclasses.replace(self, **changes)


class AttentionMetadataBuilder:
    """Made once for each backend of a model.

    Args:
        layer_names: the layers that the backend computes.
        vllm_config: of the worker.
    """

    reorder_batch_threshold: ClassVar[int | None] = None
    supports_update_block_table: ClassVar[bool] = False
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """What ``forward`` of the backend is given; called once in each step.

        Args:
            common_prefix_len: 0.
            fast_build: false.
        """
        raise TypeError(f"{type(self).__qualname__} must define build")


class BackendSteps:
    """What layers of one backend do before it computes: build its metadata, once a step for all of
    them, and write the cache, where the backend leaves that to a function of its own."""

    def __init__(self, builder: AttentionMetadataBuilder | None, writes_apart: bool) -> None:
        self._builder = builder
        self._writes_apart = writes_apart

    def before(
        self, layer: Attention, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> Any:
        """What the backend's ``forward`` is given as metadata.

        Args:
            key: ``[tokens, num_kv_heads, head_size]``, as ``value``.
        """
        if self._writes_apart:
            impl: Any = layer.impl
            impl.do_kv_cache_update(layer, key, value, layer.kv_cache, metadata.slot_mapping)
        if self._builder is None:
            return metadata
        built = metadata.cache.get(self)
        if built is None:
            built = self._builder.build(0, describe_step(metadata, key.device))
            metadata.cache[self] = built
        return built


def add_backend_steps(layers: dict[str, Any], vllm_config: Any, device: torch.device) -> None:
    """Give the layers of backends that have builders, or write the cache apart, what they do before
    it computes."""
    by_backend: dict[type[AttentionBackend], list[str]] = {}
    for name, layer in layers.items():
        # A model's own layer computes attention as it likes.
        if hasattr(layer, "use_steps"):
            by_backend.setdefault(layer.get_attn_backend(), []).append(name)
    for backend, names in by_backend.items():
        builder_class = backend.get_builder_cls()
        writes_apart = not backend.forward_includes_kv_cache_update
        if builder_class is None and not writes_apart:
            continue
        spec = layers[names[0]].get_kv_cache_spec(vllm_config)
        builder = None
        if builder_class is not None:
            builder = builder_class(spec, names, vllm_config, device)
        steps = BackendSteps(builder, writes_apart)
        one = torch.ones((), device=device)
        for name in names:
            layers[name].use_steps(steps, one)


def describe_step(metadata: AttentionMetadata, device: torch.device) -> CommonAttentionMetadata:
    starts = torch.tensor(metadata.query_start_loc, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(metadata.seq_lens, dtype=torch.int32, device=device),
        num_reqs=metadata.num_reqs,
        num_actual_tokens=metadata.num_tokens,
        max_query_len=max(_lengths(metadata.query_start_loc)),
        max_seq_len=max(metadata.seq_lens),
        block_table_tensor=metadata.block_tables.to(torch.int32),
        slot_mapping=metadata.slot_mapping,
    )


def _lengths(starts: Sequence[int]) -> list[int]:
    return [end - start for start, end in itertools.pairwise(starts)]
