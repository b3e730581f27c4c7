"""The KV cache of other engines, which is not transferred."""

from __future__ import annotations

from typing import Any

__all__ = ["get_kv_transfer_group", "has_kv_transfer_group", "is_v1_kv_transfer_group"]

__surface__ = {
    "get_kv_transfer_group": "live: raises, as there is no connector; ask has_kv_transfer_group",
    "has_kv_transfer_group": "live: false, as there is no connector",
    "is_v1_kv_transfer_group": "live: false, as there is no connector",
}


def has_kv_transfer_group() -> bool:
    """Whether this process has a connector; never."""
    return False


def is_v1_kv_transfer_group(connector: Any = None) -> bool:
    """Whether a connector, or the one of this process, is one of this interface."""
    from .kv_connector.v1.base import KVConnectorBase_V1

    return isinstance(connector, KVConnectorBase_V1)


def get_kv_transfer_group() -> Any:
    """
    Raises:
        RuntimeError: there is none.
    """
    raise RuntimeError(
        "get_kv_transfer_group: this process has no connector, since the KV cache is not "
        "transferred; ask has_kv_transfer_group before"
    )
