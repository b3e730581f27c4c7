"""What exchanges tensors between the ranks of one model."""

from __future__ import annotations

from hookserve.ops.device_communicator import DeviceCommunicatorBase

__all__ = ["DeviceCommunicatorBase"]

__surface__ = {
    "All2AllManagerBase": "refused: no experts are spread over ranks",
    "DeviceCommunicatorBase": "live: a subclass that a platform names by "
    "get_device_communicator_cls does every all_reduce and all_gather of the layers, is shown the "
    "loaded model, and is destroyed in the end; by torch.distributed. The rest is for the "
    "plugin's own calls",
}
