"""The CPU: which types it computes natively, and what the configuration must look like for it.

Decided from the processor's flags, without torch; how many threads and how much memory there
are is ``engine.resources``' to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hookserve.engine.platform import Platform, PlatformEnum

_BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""Processor flags, any of which means that bfloat16 products run in hardware (x86, x86, Arm)."""


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first processor's flags; empty where the system does not tell."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


class CpuPlatform(Platform):
    _enum = PlatformEnum.CPU
    device_name = "cpu"
    device_type = "cpu"
    dist_backend = "gloo"
    supported_dtype_names: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")

    @classmethod
    def is_available(cls) -> tuple[bool, str]:
        return True, "every machine has a CPU"

    @classmethod
    def native_bfloat16(cls) -> tuple[bool, str]:
        flags = read_cpu_flags()
        flag = next((flag for flag in _BF16_FLAGS if flag in flags), None)
        if flag is None:
            return False, "the processor has no native bfloat16"
        return True, f"the processor has {flag}"
