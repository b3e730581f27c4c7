"""When CUDA devices are offered, by what a machine has; and what their driver is asked."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookserve.engine.errors import ConfigError
from hookserve.hookspecs import PluginSettings, UnknownNameError, bootstrap
from hookserve.ops.op_rule import CALLED
from hookserve.plugins_builtin import cuda, cuda_platform
from hookserve.plugins_builtin.cuda_platform import CudaPlatform, driver_memory, find_cuda

BUILT = "__version__ = '2.11.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
PLAIN = "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.1'\n"


@pytest.mark.parametrize(
    ("device_file", "version", "expected"),
    [
        ("nvidiactl", BUILT, (True, "NVIDIA driver, and torch is built for CUDA 12.8")),
        ("dxg", BUILT, (True, "torch is built for CUDA 12.8")),
        ("tty", BUILT, (False, "the machine has no NVIDIA driver")),
        ("nvidiactl", PLAIN, (False, "this torch is built without CUDA")),
        ("nvidiactl", None, (False, "this torch is built without CUDA")),
    ],
)
def test_it_takes_a_driver_and_a_torch_for_it(
    device_file: str,
    version: str | None,
    expected: tuple[bool, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / device_file).touch()
    if version is not None:
        (tmp_path / "version.py").write_text(version)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "torch" else None)
    available, reason = find_cuda(tmp_path)
    assert available is expected[0] and expected[1] in reason


def test_the_hook_offers_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaPlatform, "is_available", lambda: (True, "a test"))
    assert cuda.platform() == "hookserve.plugins_builtin.cuda_platform:CudaPlatform"
    host = bootstrap({"worker"}, PluginSettings(no_plugins=True))
    assert host.platform().name == "cpu"  # until it is named
    host.close()
    host = bootstrap({"worker"}, PluginSettings(no_plugins=True, platform="cuda"))
    platform = host.registry("platform").resolve(host.platform().name)
    assert platform is CudaPlatform and platform.device_type in CALLED
    host.close()
    monkeypatch.setattr(CudaPlatform, "is_available", lambda: (False, "a test"))
    assert cuda.platform() is None
    host = bootstrap({"worker"}, PluginSettings(no_plugins=True, platform="cuda"))
    with pytest.raises(UnknownNameError, match="'cuda' did not answer on this machine"):
        host.platform()
    host.close()


class Driver:
    """Two devices, of 8 and 16 GiB."""

    def __init__(self, code: int = 0) -> None:
        self.code = code

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = 70 + ordinal
        return 0 if ordinal < 2 else 101

    def cuDeviceTotalMem_v2(self, num_bytes: Any, device: Any) -> int:
        num_bytes._obj.value = (8 << 30) * (device.value - 69)
        return 0


def test_memory_is_the_drivers_word_until_torch_has_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: loaded.append(name) or Driver())
    assert CudaPlatform.available_memory() == (8 << 30, "all memory of the first CUDA device")
    assert CudaPlatform.get_device_total_memory(1) == 16 << 30
    assert loaded == ["libcuda.so.1"] * 2
    with pytest.raises(ConfigError, match=r"does not tell of device 2 \(CUresult 101\)"):
        driver_memory(2)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(code=3))
    with pytest.raises(ConfigError, match=r"CUresult 3"):
        driver_memory(0)
    monkeypatch.undo()
    monkeypatch.setattr(cuda_platform, "DRIVER", "libthereisnone.so.1")
    with pytest.raises(ConfigError, match=r"libthereisnone.so.1 cannot be loaded"):
        driver_memory(0)
    used = SimpleNamespace(
        is_initialized=lambda: True, mem_get_info=lambda: (5, 9), get_device_name=lambda: "a card"
    )
    monkeypatch.setattr(torch, "cuda", used)
    assert CudaPlatform.available_memory() == (5, "free memory of a card")
