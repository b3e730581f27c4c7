"""Built-in plugin: the CPU as a platform. It is the one that answers on every machine."""

from __future__ import annotations

from hookserve.hookspecs import hookimpl


@hookimpl
def platform() -> str:
    return "hookserve.plugins_builtin.cpu_platform:CpuPlatform"
