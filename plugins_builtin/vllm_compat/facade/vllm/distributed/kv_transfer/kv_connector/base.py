"""The older path of ``v1.base``."""

from __future__ import annotations

from .v1.base import KVConnectorBase_V1
from .v1.base import KVConnectorBase_V1 as KVConnectorBase
from .v1.base import __surface__ as _SURFACE

__older_path_of__ = "vllm.distributed.kv_transfer.kv_connector.v1.base"

__all__ = ["KVConnectorBase", "KVConnectorBase_V1"]

__surface__ = dict.fromkeys(__all__, _SURFACE["KVConnectorBase_V1"])
