"""The CPU, which is also a base of platforms that keep their tensors in the machine's memory."""

from __future__ import annotations

from hookserve.plugins_builtin.cpu_platform import CpuPlatform

__all__ = ["CpuPlatform"]

__surface__ = {
    "CpuPlatform": "live: the built-in platform of every machine; a subclass is a platform",
}
