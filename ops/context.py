"""What layers read from their surroundings: the forward context of a step, the context in which
a model is built, and the tensor-parallel group.

The engine enters these; layers only read them. Scheduling and requests are the engine's.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .errors import PeerLostError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .attention_backend import AttentionBackend
    from .cpu_kernels import CpuKernels
    from .decode_groups import DecodeMemory
    from .device_communicator import DeviceCommunicatorBase
    from .dispatch import OpSet


@dataclass(slots=True)
class AttentionMetadata:
    """One step's batch as attention sees it. Filled by the model runner.

    Rows are flattened tokens: those of request ``i`` are ``[query_start_loc[i],
    query_start_loc[i + 1])``. Requests that decode (one token each) come first.
    """

    num_reqs: int
    num_tokens: int
    num_decode_reqs: int
    query_start_loc: list[int]
    """Length ``num_reqs + 1``."""
    seq_lens: list[int]
    """Length ``num_reqs``: tokens of context, this step's included."""
    block_tables: torch.Tensor
    """``[num_reqs, max_blocks]`` int64, rows padded with 0."""
    slot_mapping: torch.Tensor
    """``[num_tokens]`` int64: ``block * block_size + offset`` of each token."""
    block_size: int
    sequences: tuple[int, ...] = ()
    """Of each decoding request a number that is its own for as long as its blocks are."""
    decode_memory: DecodeMemory | None = None
    """What layers keep of decoding sequences from step to step; ``None``: nothing."""
    cache: dict[Any, Any] = field(default_factory=dict)
    """Work that layers share within the step (indices, masks, rotations). Filled by layers."""


@dataclass(slots=True)
class ForwardContext:
    """What a layer may ask for while the model runs."""

    attn_metadata: AttentionMetadata | None
    """``None`` while profiling: attention then returns zeros and touches no cache."""
    layers: dict[str, Any]
    """Attention layers by prefix (``static_forward_context``)."""

    @property
    def no_compile_layers(self) -> dict[str, Any]:
        """``layers``, by the name under which models written for other hosts ask for them."""
        return self.layers


_forward: contextvars.ContextVar[ForwardContext | None] = contextvars.ContextVar(
    "hookserve_forward_context", default=None
)


@contextlib.contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Within the block, ``get_forward_context`` answers ``context``. Nesting is a bug."""
    if _forward.get() is not None:
        raise RuntimeError("a forward context is active already; steps do not nest")
    token = _forward.set(context)
    try:
        yield context
    finally:
        _forward.reset(token)


def get_forward_context() -> ForwardContext:
    """The context of the running step.

    Raises:
        RuntimeError: outside ``set_forward_context``.
    """
    context = _forward.get()
    if context is None:
        raise RuntimeError(
            "no forward context is active; run the model inside set_forward_context(...)"
        )
    return context


def step_cache() -> dict[Any, Any] | None:
    """The scratch that layers share within the step, or ``None`` outside a step."""
    context = _forward.get()
    if context is None or context.attn_metadata is None:
        return None
    return context.attn_metadata.cache


@dataclass(slots=True)
class ModelContext:
    """What layers take up while a model is built."""

    static_forward_context: dict[str, Any]
    """Attention layers register themselves here under their prefix."""
    dtype: torch.dtype
    block_size: int
    max_model_len: int | None = None
    """The longest sequence that will be served; ``None``: not known."""
    attention_backends: Sequence[type[AttentionBackend]] = ()
    """What attention layers compute with: each layer takes the first that can do what it asks.
    Empty: the plain built-in one."""
    kernels: CpuKernels | None = None
    """Compiled kernels for layers that have a use for them; ``None``: torch's own functions."""
    ops: OpSet | None = None
    """What is built for each op; ``None``: the classes that are named, computing with torch."""
    shared: dict[Any, Any] = field(default_factory=dict)
    """Modules that layers of this model share, such as rotary embeddings."""


_model: contextvars.ContextVar[ModelContext | None] = contextvars.ContextVar(
    "hookserve_model_context", default=None
)


@contextlib.contextmanager
def set_model_context(
    *,
    static_forward_context: dict[str, Any],
    dtype: torch.dtype,
    block_size: int,
    max_model_len: int | None = None,
    attention_backends: Sequence[type[AttentionBackend]] = (),
    kernels: CpuKernels | None = None,
    ops: OpSet | None = None,
) -> Iterator[ModelContext]:
    """Within the block models may be built; the loader enters it."""
    context = ModelContext(
        static_forward_context, dtype, block_size, max_model_len, attention_backends, kernels, ops
    )
    token = _model.set(context)
    try:
        yield context
    finally:
        _model.reset(token)


def get_model_context() -> ModelContext | None:
    """The context of the model that is being built, if any."""
    return _model.get()


def get_ops() -> OpSet | None:
    """What is built for each op of the model that is being built, if there is such a choice."""
    context = get_model_context()
    return None if context is None else context.ops


def get_kernels() -> CpuKernels | None:
    """The compiled kernels of the model that is being built, if it has any."""
    context = get_model_context()
    return None if context is None else context.kernels


@dataclass(slots=True)
class TensorParallelGroup:
    """The ranks that share one model, and this one's place among them.

    It counts what it sends: two all-reduces a layer are the price of the split, and one more that
    nobody asked for is only seen by counting.
    """

    rank: int
    world_size: int
    group: ProcessGroup | None = None
    communicator: DeviceCommunicatorBase | None = None
    """A plugin's, in place of the calls below."""
    num_all_reduces: int = 0
    num_all_gathers: int = 0

    @property
    def rank_in_group(self) -> int:
        return self.rank

    @property
    def ranks(self) -> list[int]:
        return list(range(self.world_size))

    @property
    def is_first_rank(self) -> bool:
        return self.rank == 0

    @property
    def is_last_rank(self) -> bool:
        return self.rank == self.world_size - 1

    @property
    def device_group(self) -> ProcessGroup | None:
        """``None`` where the rank is alone."""
        return self.group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of ``x`` over the ranks. Where there is more than one, ``x`` may be overwritten:
        it must be the caller's own.

        Raises:
            PeerLostError
        """
        if self.world_size > 1:
            self.num_all_reduces += 1
            x = x.contiguous()
            try:
                if self.communicator is not None:
                    return self.communicator.all_reduce(x)
                torch.distributed.all_reduce(x, group=self.group)
            except RuntimeError as error:
                raise self._lost(error) from error
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Join the ranks' ``x`` along a dimension, in their order: ``[..., n]`` to
        ``[..., n * world_size]``.

        Raises:
            PeerLostError
        """
        if self.world_size == 1:
            return x
        self.num_all_gathers += 1
        x = x.contiguous()
        try:
            if self.communicator is not None:
                return self.communicator.all_gather(x, dim)
            parts = [torch.empty_like(x) for _ in range(self.world_size)]
            torch.distributed.all_gather(parts, x, group=self.group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return torch.cat(parts, dim=dim)

    def _lost(self, error: RuntimeError) -> PeerLostError:
        by = "" if self.communicator is None else f" by {type(self.communicator).__qualname__}"
        return PeerLostError(f"rank {self.rank} cannot reach the others{by}: {error}")


_SINGLE = TensorParallelGroup(rank=0, world_size=1)
_group: contextvars.ContextVar[TensorParallelGroup] = contextvars.ContextVar(
    "hookserve_tp_group", default=_SINGLE
)


@contextlib.contextmanager
def set_tp_group(group: TensorParallelGroup) -> Iterator[None]:
    """Within the block layers are built, loaded and run as this rank."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def stay_in_tp_group(group: TensorParallelGroup) -> None:
    """Make ``group`` the current one of this thread for good: that of a process which has no
    other."""
    _group.set(group)


def get_tp_group() -> TensorParallelGroup:
    """The current group; a single rank unless the engine set another."""
    return _group.get()


def get_pp_group() -> TensorParallelGroup:
    """The stages of the pipeline: one, which is first and last."""
    return _SINGLE
