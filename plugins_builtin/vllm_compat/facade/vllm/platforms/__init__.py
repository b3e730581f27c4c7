"""The platform of this process, and which there are.

Importing this module, or any other, decides nothing: ``current_platform`` looks the platform up
when something is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable

from hookserve.plugins_builtin import cuda as cuda_plugin
from hookserve.plugins_builtin import platforms as cpu_plugin
from hookserve.plugins_builtin.vllm_compat.current_platform import (
    CurrentPlatform,
    find_claim,
    trace_of,
)

from .interface import CpuArchEnum, Platform, PlatformEnum

__all__ = [
    "CpuArchEnum",
    "Platform",
    "PlatformEnum",
    "builtin_platform_plugins",
    "cpu_platform_plugin",
    "cuda_platform_plugin",
    "current_platform",
    "resolve_current_platform_cls_qualname",
]

__surface__ = {
    "CpuArchEnum": "live: what get_cpu_architecture answers",
    "Platform": "live: base of every platform, the built-in ones too",
    "PlatformEnum": "live: kinds of devices",
    "builtin_platform_plugins": "live: the built-in platforms by name, each a function that "
    "answers its class path, or None: not on this machine",
    "cpu_platform_plugin": "live: the function of the platform cpu",
    "cuda_platform_plugin": "live: the function of the platform cuda, which --platform cuda "
    "chooses",
    "current_platform": "live: the one object of this process's platform, which the engine asks "
    "too; an attribute that neither its class nor torch's module of the device has is an "
    "AttributeError, not None",
    "resolve_current_platform_cls_qualname": "live: the class path of current_platform",
    "rocm_platform_plugin": "refused: no ROCm platform is built in; a plugin's may be",
    "tpu_platform_plugin": "refused: no TPU platform is built in; a plugin's may be",
    "xpu_platform_plugin": "refused: no XPU platform is built in; a plugin's may be",
}


def cpu_platform_plugin() -> str | None:
    return cpu_plugin.platform().replace(":", ".")


def cuda_platform_plugin() -> str | None:
    path = cuda_plugin.platform()
    return None if path is None else path.replace(":", ".")


builtin_platform_plugins: dict[str, Callable[[], str | None]] = {
    "cuda": cuda_platform_plugin,
    "cpu": cpu_platform_plugin,
}


def resolve_current_platform_cls_qualname() -> str:
    return find_claim().target_text().replace(":", ".")


current_platform = CurrentPlatform()


def __getattr__(name: str) -> str:
    if name == "_init_trace":
        return trace_of(current_platform)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
