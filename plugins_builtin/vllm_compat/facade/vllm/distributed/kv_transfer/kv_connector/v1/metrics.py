"""What a connector may tell of its transfers."""

from __future__ import annotations

from hookserve.engine.kv_connector_stats import KVConnectorPromMetrics, KVConnectorStats

__all__ = ["KVConnectorPromMetrics", "KVConnectorStats"]

_UNUSED = "shape: to be subclassed and tested; no connector is made yet, so nobody asks"
__surface__ = dict.fromkeys(__all__, _UNUSED)
