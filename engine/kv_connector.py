"""``KVConnectorBase``: carries keys and values between engines, or to a store. The contract of the
hook ``kv_connector``; names are the ecosystem's (vLLM's).

Nothing makes one so far: the KV cache is not transferred. One class would have two roles: the
scheduler's, in the engine, and the worker's; the two objects share no memory. Methods that are not
abstract have an answer that says "nothing to do".
"""

# ruff: noqa: B027 - what a connector has no use for it leaves as it is

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch

    from .request import Request
    from .step import SchedulerOutput
    from .vllm_config import VllmConfig


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    """In the engine's process."""
    WORKER = 1


class KVConnectorMetadata(abc.ABC):  # noqa: B024 - what is in it is the connector's own business
    """What the scheduler's half tells the workers' of a step."""


class KVConnectorWorkerMetadata(abc.ABC):
    """What a worker tells the scheduler's half of a step."""

    @abc.abstractmethod
    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """One of two workers'."""


class KVConnectorHandshakeMetadata(abc.ABC):  # noqa: B024
    """What other engines must know to reach a worker."""


class SupportsHMA(abc.ABC):
    """A connector that knows of several groups of layers with caches of their own."""

    @abc.abstractmethod
    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As ``request_finished``, with the blocks of each group."""


def supports_hma(connector: Any) -> bool:
    """Whether a connector, or the class of one, does."""
    cls = connector if isinstance(connector, type) else type(connector)
    return issubclass(cls, SupportsHMA)


class KVConnectorBase(abc.ABC):
    """
    Attributes:
        requires_kv_delivery: whether a request may not end before its cache was handed on.
        supports_divergent_local_hybrid_hits: whether groups of layers may have prefixes of
            different lengths.

    Raises:
        ValueError: a configuration without ``kv_transfer_config``.
    """

    requires_kv_delivery: ClassVar[bool] = False
    supports_divergent_local_hybrid_hits: ClassVar[bool] = False

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        if vllm_config.kv_transfer_config is None:
            raise ValueError(
                f"{type(self).__name__}: the configuration has no kv_transfer_config; that of this "
                "server has none, as the KV cache is not transferred; give one with a "
                "KVTransferConfig"
            )
        self._connector_metadata: KVConnectorMetadata | None = None
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._role = role

    @property
    def role(self) -> KVConnectorRole:
        return self._role

    # -- the worker's half ----------------------------------------------------------------------

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before each step."""
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        """After each step."""
        self._connector_metadata = None

    def has_connector_metadata(self) -> bool:
        return self._connector_metadata is not None

    def _get_connector_metadata(self) -> KVConnectorMetadata:
        """
        Raises:
            RuntimeError: no step is under way.
        """
        if self._connector_metadata is None:
            raise RuntimeError(
                f"{type(self).__name__}: there is metadata within a step alone; ask "
                "has_connector_metadata before"
            )
        return self._connector_metadata

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Once, with the cache of each layer by its name."""

    def set_host_xfer_buffer_ops(self, copy_operation: Callable[..., Any]) -> None:
        """How blocks are copied to the host's memory and back."""

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        """Surrounds the allocation of the cache."""
        return None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Before blocks of preempted requests are used by others."""

    @abc.abstractmethod
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Before the forward pass: begin to load what the metadata asks for."""

    @abc.abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Within each attention layer, before it reads its cache."""

    @abc.abstractmethod
    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Within each attention layer, when its cache is written."""

    @abc.abstractmethod
    def wait_for_save(self) -> None:
        """After the forward pass: what was begun to be saved must be out of the cache."""

    def finish_forward(self) -> None:
        """After the forward pass."""

    def reset_capture_state(self) -> None:
        """Before graphs are captured."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Ids of the requests whose cache is sent, and of those whose cache is here, by now."""
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return None

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return None

    def get_kv_connector_stats(self) -> Any:
        return None

    def get_kv_connector_kv_cache_events(self) -> Any:
        return None

    def shutdown(self) -> Any:
        """At the end, in either role."""
        return None

    # -- the scheduler's half -------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Once, with what gives out blocks."""

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Once, with the blocks."""

    @abc.abstractmethod
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens behind those that are computed could be loaded (``None``: ask again
        later), and whether that goes on beside the steps."""

    @abc.abstractmethod
    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """The request has blocks for them; of a load beside the steps, told again when it is
        over."""

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """What the workers are told of the step that was scheduled."""

    def on_new_request(self, request: Request) -> None:
        """A request has come."""

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers said of a step."""

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether its blocks are still needed, and what the client is told."""
        return False, None

    def take_events(self) -> Iterable[Any]:
        return ()

    def has_pending_block_frees(self) -> bool:
        return False

    def has_pending_push_work(self) -> bool:
        return False

    def get_finished_count(self) -> int | None:
        """How many workers must say that a request's transfer is over; ``None``: all."""
        return None

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """What each rank's ``get_handshake_metadata`` said."""

    def reset_cache(self) -> bool | None:
        """Forget what is kept outside; ``None``: nothing is."""
        return None

    # -- of the class ---------------------------------------------------------------------------

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Mapping[str, Any]) -> bool:
        return False

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return None

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        return None
