"""What is said of the device."""

from __future__ import annotations

from hookserve.engine.vllm_config import DeviceConfig

__all__ = ["DeviceConfig"]

__surface__ = {
    "DeviceConfig": "live: the worker takes its device from it",
}
