"""The CPU platform under another name."""

from __future__ import annotations

from hookserve.plugins_builtin.cpu_platform import CpuPlatform

from .trace import note

note("import", module=__name__)


class ToyPlatform(CpuPlatform):
    device_name = "toy"
