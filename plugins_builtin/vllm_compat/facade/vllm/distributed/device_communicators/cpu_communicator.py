"""The exchange of tensors between ranks on CPUs."""

from __future__ import annotations

from hookserve.ops.device_communicator import DeviceCommunicatorBase as CpuCommunicator

__all__ = ["CpuCommunicator"]

__surface__ = {
    "CpuCommunicator": "live: the base itself, by gloo",
}
