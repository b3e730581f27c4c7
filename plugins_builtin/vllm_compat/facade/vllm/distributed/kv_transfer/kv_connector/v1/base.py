"""What a connector is."""

from __future__ import annotations

from hookserve.engine.kv_connector import KVConnectorBase as KVConnectorBase_V1
from hookserve.engine.kv_connector import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
    supports_hma,
)

__all__ = [
    "KVConnectorBase_V1",
    "KVConnectorHandshakeMetadata",
    "KVConnectorMetadata",
    "KVConnectorRole",
    "KVConnectorWorkerMetadata",
    "SupportsHMA",
    "supports_hma",
]

_UNUSED = "shape: to be subclassed, registered and tested; no connector is made yet"
__surface__ = dict.fromkeys(__all__, _UNUSED)
