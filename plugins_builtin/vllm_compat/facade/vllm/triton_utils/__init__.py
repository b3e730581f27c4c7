"""Triton, where it is installed."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

__all__ = ["HAS_TRITON", "tl", "tldevice", "triton"]

__surface__ = {
    "HAS_TRITON": "live: whether Triton is installed; kernels run on a GPU, or in its interpreter",
    "tl": "live: triton.language; not there without Triton (extra gpu)",
    "triton": "live: the package; not there without Triton (extra gpu)",
    "tldevice": "live: triton.language.extra.libdevice; not there without Triton (extra gpu)",
}

HAS_TRITON = find_spec("triton") is not None
_HOMES = {
    "triton": "triton",
    "tl": "triton.language",
    "tldevice": "triton.language.extra.libdevice",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(_HOMES[name])
