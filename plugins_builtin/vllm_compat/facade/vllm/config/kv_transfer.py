"""``KVTransferConfig``: how keys and values would be exchanged."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

__all__ = ["KVTransferConfig"]

__surface__ = {
    "KVTransferConfig": "shape: connectors may be built and tested with it; the KV cache is not "
    "transferred yet, so vllm_config.kv_transfer_config is None",
}

_PRODUCERS = ("kv_producer", "kv_both")
_CONSUMERS = ("kv_consumer", "kv_both")


@dataclass
class KVTransferConfig:
    kv_connector: str | None = None
    engine_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    kv_role: str | None = None
    """``kv_producer``, ``kv_consumer`` or ``kv_both``."""
    kv_rank: int | None = None
    kv_parallel_size: int = 1
    kv_ip: str = "127.0.0.1"
    kv_port: int = 14579
    kv_buffer_device: str = "cpu"
    kv_buffer_size: float = 1e9
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    kv_connector_module_path: str | None = None
    kv_load_failure_policy: str = "fail"

    @property
    def is_kv_transfer_instance(self) -> bool:
        return self.kv_connector is not None and self.kv_role in (*_PRODUCERS, *_CONSUMERS)

    @property
    def is_kv_producer(self) -> bool:
        return self.kv_connector is not None and self.kv_role in _PRODUCERS

    @property
    def is_kv_consumer(self) -> bool:
        return self.kv_connector is not None and self.kv_role in _CONSUMERS

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        return self.kv_connector_extra_config.get(key, default)
