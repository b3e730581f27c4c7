"""CUDA devices: whether there are any, their memory, and what makes one current.

Front, which has no torch, asks the driver itself; a worker asks torch. Which kernels run on the
device is chosen by ``ops`` and ``engine.model_parts``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hookserve.engine.errors import ConfigError
from hookserve.engine.platform import DeviceCapability, Platform, PlatformEnum

if TYPE_CHECKING:
    import torch

DRIVER = "libcuda.so.1"
_DEVICE_FILES = ("nvidiactl", "dxg")
"""Of NVIDIA's driver on Linux, and on Linux inside Windows."""


class CudaPlatform(Platform):
    _enum = PlatformEnum.CUDA
    device_name = "cuda"
    device_type = "cuda"
    dispatch_key = "CUDA"
    dist_backend = "nccl"
    supported_dtype_names: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")

    @classmethod
    def is_available(cls) -> tuple[bool, str]:
        return find_cuda(Path("/dev"))

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        import torch

        if device.index is not None:  # else the first one, which is current already
            torch.cuda.set_device(device)

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        import torch

        return DeviceCapability(*torch.cuda.get_device_capability(device_id))

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        import torch

        return torch.cuda.get_device_name(device_id)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return driver_memory(device_id)

    @classmethod
    def get_current_memory_usage(cls, device: torch.device | None = None) -> float:
        import torch

        return float(torch.cuda.memory_allocated(device))

    @classmethod
    def available_memory(cls) -> tuple[int, str]:
        """Of the device that is current; where torch has not been used yet, all of the first."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return driver_memory(0), "all memory of the first CUDA device"
        free, _ = torch.cuda.mem_get_info()
        return int(free), f"free memory of {torch.cuda.get_device_name()}"


def find_cuda(devices: Path) -> tuple[bool, str]:
    """Whether models can run on a CUDA device, and the reason in one sentence; from files alone.

    Args:
        devices: the machine's ``/dev``.
    """
    if not any((devices / name).exists() for name in _DEVICE_FILES):
        return False, "the machine has no NVIDIA driver"
    spec = importlib.util.find_spec("torch")
    try:
        text = Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
    except OSError:
        text = ""
    built_for = re.search(r"^cuda\b[^=\n]*= *'([^']+)'", text, re.MULTILINE)
    if built_for is None:
        return False, "this torch is built without CUDA"
    return True, f"the machine has an NVIDIA driver, and torch is built for CUDA {built_for[1]}"


def driver_memory(device_id: int) -> int:
    """Bytes of a device, asked of the driver (CUDA Driver API, "Device Management"), which makes
    nothing on the device for it.

    Raises:
        ConfigError: the driver is not there, or says no.
    """
    device, num_bytes = ctypes.c_int(), ctypes.c_size_t()
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        raise ConfigError(f"--platform cuda: {DRIVER} cannot be loaded: {error}") from error
    code = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), device_id)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(num_bytes), device)
    )
    if code:
        raise ConfigError(
            f"--platform cuda: the driver does not tell of device {device_id} (CUresult {code})"
        )
    return num_bytes.value
