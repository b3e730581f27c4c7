"""The exchange of tensors between ranks on CUDA devices."""

from __future__ import annotations

from hookserve.ops.device_communicator import DeviceCommunicatorBase as CudaCommunicator

__all__ = ["CudaCommunicator"]

__surface__ = {
    "CudaCommunicator": "live: the base itself, by NCCL",
}
